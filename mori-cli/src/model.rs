//! Models whose cache is moved, from their published configurations, and the shape that a block of theirs has.
//!
//! A block is the cache of [`BLOCK_TOKENS`] tokens: layers × K and V × tokens × heads × dimension × bytes, or, for a
//! model with a latent cache, layers × tokens × (rank + rotary part) × bytes. Serving systems keep one paged tensor for
//! each layer, so a block is not one run of bytes but one piece for each layer ([`Pieces::Layer`]), or two where K and V
//! live in tensors of their own ([`Pieces::Tensor`]).
//!
//! A full block is large (64 MiB for Llama-3-8B). A *scale* of `n` keeps 1/n of each piece, as if a block had fewer
//! tokens: the number of pieces and their scatter stay as they are.

use crate::trace::BLOCK_TOKENS;

/// Every piece is a multiple of this many bytes.
pub const PIECE_ALIGN: u64 = 64;

/// The most layers that a shape may have; a bound on what a peer can ask us to lay out.
pub const MAX_LAYERS: u32 = 4096;

/// What a model keeps for each token and layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attention {
    /// Keys and values of some heads.
    Heads {
        /// Heads that have keys and values of their own.
        kv_heads: u64,
        /// Elements of one head.
        head_dim: u64,
    },
    /// One compressed vector in place of keys and values.
    Latent {
        /// Elements of the compressed vector.
        rank: u64,
        /// Elements of the rotary part beside it.
        rope: u64,
    },
}

/// A model, as far as its cache is concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Model {
    /// The name that the command line uses.
    pub name: &'static str,
    /// Layers.
    pub layers: u32,
    /// What is kept for each of them.
    pub attention: Attention,
    /// Bytes of one element.
    pub element_bytes: u64,
}

/// Llama 3 8B, 16-bit cache: 128 KiB a token.
pub const LLAMA_3_8B: Model = Model {
    name: "llama-3-8b",
    layers: 32,
    attention: Attention::Heads { kv_heads: 8, head_dim: 128 },
    element_bytes: 2,
};
/// Llama 3 70B, 16-bit cache: 320 KiB a token.
pub const LLAMA_3_70B: Model = Model {
    name: "llama-3-70b",
    layers: 80,
    attention: Attention::Heads { kv_heads: 8, head_dim: 128 },
    element_bytes: 2,
};
/// DeepSeek V3, 16-bit latent cache of 512 + 64 elements: 70,272 bytes a token.
pub const DEEPSEEK_V3: Model = Model {
    name: "deepseek-v3",
    layers: 61,
    attention: Attention::Latent { rank: 512, rope: 64 },
    element_bytes: 2,
};
/// Qwen 2.5 7B, 16-bit cache: 56 KiB a token.
pub const QWEN_2_5_7B: Model = Model {
    name: "qwen-2.5-7b",
    layers: 28,
    attention: Attention::Heads { kv_heads: 4, head_dim: 128 },
    element_bytes: 2,
};

/// All presets.
pub const MODELS: [Model; 4] = [LLAMA_3_8B, LLAMA_3_70B, DEEPSEEK_V3, QWEN_2_5_7B];

/// How a layer's part of a block is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Pieces {
    /// One piece a layer, the keys before the values.
    #[default]
    Layer,
    /// One piece for each tensor: keys and values lie apart.
    Tensor,
}

/// Why a model and a scale give no shape.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ShapeError {
    /// The scale is zero.
    #[error("a scale of 0 has no meaning; 1 is the full model, larger numbers keep a smaller part of it")]
    ScaleZero,
    /// The scale leaves less than the smallest piece.
    #[error("a scale of {scale} leaves nothing of a block of {model}; the largest is {largest}")]
    ScaleTooLarge {
        /// The model.
        model: &'static str,
        /// The scale asked for.
        scale: u64,
        /// The largest that works.
        largest: u64,
    },
    /// The numbers do not describe a shape; only a peer can hand us such.
    #[error(
        "{layers} layers with {tensors} tensors, {pieces_per_layer} pieces each of {piece_bytes} bytes are no block shape"
    )]
    Impossible {
        /// Layers given.
        layers: u32,
        /// Tensors a layer given.
        tensors: u32,
        /// Pieces a layer given.
        pieces_per_layer: u32,
        /// Bytes of a piece given.
        piece_bytes: u64,
    },
}

/// The tensor that a byte belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tensor {
    /// The keys.
    Key,
    /// The values.
    Value,
    /// The latent vector.
    Latent,
}

impl std::fmt::Display for Tensor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Key => "K",
            Self::Value => "V",
            Self::Latent => "latent",
        })
    }
}

/// Where a byte of a block stands in the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The layer, from 0.
    pub layer: u32,
    /// The tensor.
    pub tensor: Tensor,
    /// The byte within the block's part of that tensor, from 0.
    pub position: u64,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "layer {}, {}, byte {}", self.layer, self.tensor, self.position)
    }
}

/// The shape of one block: how many pieces of how many bytes, and what they mean. All products fit in 64 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    layers: u32,
    tensors: u32,
    pieces_per_layer: u32,
    piece_bytes: u64,
}

impl Model {
    /// The preset of a name.
    pub fn named(name: &str) -> Option<Self> {
        MODELS.into_iter().find(|model| model.name == name)
    }

    /// Tensors of a layer: K and V, or the latent one.
    pub fn tensors(&self) -> u32 {
        match self.attention {
            Attention::Heads { .. } => 2,
            Attention::Latent { .. } => 1,
        }
    }

    /// Bytes that one tensor of one layer holds for one token.
    pub fn token_bytes(&self) -> u64 {
        self.element_bytes
            * match self.attention {
                Attention::Heads { kv_heads, head_dim } => kv_heads * head_dim,
                Attention::Latent { rank, rope } => rank + rope,
            }
    }

    /// The shape of a block at a scale. What does not divide evenly is rounded up to [`PIECE_ALIGN`].
    ///
    /// # Errors
    ///
    /// [`ShapeError::ScaleZero`] and [`ShapeError::ScaleTooLarge`].
    pub fn shape(&self, scale: u64, pieces: Pieces) -> Result<Shape, ShapeError> {
        let tensor_bytes = self.token_bytes() * BLOCK_TOKENS;
        let largest = tensor_bytes / PIECE_ALIGN;
        if scale == 0 {
            return Err(ShapeError::ScaleZero);
        }
        if scale > largest {
            return Err(ShapeError::ScaleTooLarge { model: self.name, scale, largest });
        }
        let kept = tensor_bytes.div_ceil(scale).next_multiple_of(PIECE_ALIGN);
        let (pieces_per_layer, piece_bytes) = match pieces {
            Pieces::Layer => (1, kept * u64::from(self.tensors())),
            Pieces::Tensor => (self.tensors(), kept),
        };
        Shape::new(self.layers, self.tensors(), pieces_per_layer, piece_bytes)
    }
}

impl Shape {
    /// A shape from its numbers, as a peer states them.
    ///
    /// # Errors
    ///
    /// [`ShapeError::Impossible`] when they make no sense: no or too many layers, one piece for half a tensor, a piece
    /// that is not a multiple of [`PIECE_ALIGN`] for each tensor, or a block beyond 2^40 bytes.
    pub fn new(
        layers: u32,
        tensors: u32,
        pieces_per_layer: u32,
        piece_bytes: u64,
    ) -> Result<Self, ShapeError> {
        let shape = Self { layers, tensors, pieces_per_layer, piece_bytes };
        let cut_ok = matches!((tensors, pieces_per_layer), (1, 1) | (2, 1 | 2));
        let unit = PIECE_ALIGN * u64::from(tensors.max(1)) / u64::from(pieces_per_layer.max(1));
        let size_ok = unit > 0 && piece_bytes > 0 && piece_bytes.is_multiple_of(unit);
        let total = piece_bytes
            .checked_mul(u64::from(layers))
            .and_then(|b| b.checked_mul(u64::from(pieces_per_layer)));
        let total_ok = total.is_some_and(|bytes| bytes <= 1 << 40);
        if (1..=MAX_LAYERS).contains(&layers) && cut_ok && size_ok && total_ok {
            Ok(shape)
        } else {
            Err(ShapeError::Impossible { layers, tensors, pieces_per_layer, piece_bytes })
        }
    }

    /// Layers.
    pub fn layers(&self) -> u32 {
        self.layers
    }

    /// Tensors of a layer.
    pub fn tensors(&self) -> u32 {
        self.tensors
    }

    /// Pieces of a layer.
    pub fn pieces_per_layer(&self) -> u32 {
        self.pieces_per_layer
    }

    /// Pieces of a block, over all layers.
    pub fn pieces(&self) -> u32 {
        self.layers * self.pieces_per_layer
    }

    /// Bytes of one piece.
    pub fn piece_bytes(&self) -> u64 {
        self.piece_bytes
    }

    /// Bytes of one block.
    pub fn block_bytes(&self) -> u64 {
        self.piece_bytes * u64::from(self.pieces())
    }

    /// What byte `position` of piece `piece` is.
    pub fn place(&self, piece: u32, position: u64) -> Place {
        let layer = piece / self.pieces_per_layer;
        let tensor_bytes = self.piece_bytes * u64::from(self.pieces_per_layer) / u64::from(self.tensors);
        let in_layer = u64::from(piece % self.pieces_per_layer) * self.piece_bytes + position;
        let tensor = match (self.tensors, in_layer / tensor_bytes) {
            (1, _) => Tensor::Latent,
            (_, 0) => Tensor::Key,
            _ => Tensor::Value,
        };
        Place { layer, tensor, position: in_layer % tensor_bytes }
    }
}

impl std::fmt::Display for Shape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} layers, {} pieces of {} bytes a block", self.layers, self.pieces(), self.piece_bytes)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn presets_have_the_published_bytes_a_token() {
        let bytes = |model: Model| model.token_bytes() * u64::from(model.tensors()) * u64::from(model.layers);
        assert_eq!(bytes(LLAMA_3_8B), 131_072);
        assert_eq!(bytes(LLAMA_3_70B), 327_680);
        assert_eq!(bytes(DEEPSEEK_V3), 70_272);
        assert_eq!(bytes(QWEN_2_5_7B), 57_344);
    }

    #[test]
    fn presets_are_found_by_name_and_only_so() {
        for model in MODELS {
            assert_eq!(Model::named(model.name), Some(model));
        }
        assert_eq!(Model::named("llama"), None);
    }

    #[test]
    fn a_full_block_holds_all_its_tokens() {
        for model in MODELS {
            for pieces in [Pieces::Layer, Pieces::Tensor] {
                let shape = model.shape(1, pieces).expect("full");
                let token = model.token_bytes() * u64::from(model.tensors()) * u64::from(model.layers);
                assert_eq!(shape.block_bytes(), token * BLOCK_TOKENS, "{}", model.name);
            }
        }
    }

    #[test]
    fn pieces_are_one_a_layer_or_one_a_tensor() {
        let count = |model: Model, pieces| model.shape(512, pieces).expect("fits").pieces();
        assert_eq!(count(LLAMA_3_8B, Pieces::Layer), 32);
        assert_eq!(count(LLAMA_3_8B, Pieces::Tensor), 64);
        assert_eq!(count(DEEPSEEK_V3, Pieces::Layer), 61);
        assert_eq!(count(DEEPSEEK_V3, Pieces::Tensor), 61);
    }

    #[test]
    fn a_scale_of_zero_and_one_beyond_the_largest_are_refused() {
        assert_eq!(LLAMA_3_8B.shape(0, Pieces::Layer), Err(ShapeError::ScaleZero));
        for model in MODELS {
            let Err(ShapeError::ScaleTooLarge { largest, .. }) = model.shape(u64::MAX, Pieces::Layer) else {
                panic!("u64::MAX must be too large");
            };
            assert_eq!(model.shape(largest, Pieces::Tensor).expect("largest").piece_bytes(), PIECE_ALIGN);
            assert!(model.shape(largest + 1, Pieces::Tensor).is_err());
        }
    }

    #[test]
    fn impossible_numbers_of_a_peer_are_refused() {
        for (layers, tensors, per_layer, bytes) in [
            (0, 2, 1, 128),
            (MAX_LAYERS + 1, 2, 1, 128),
            (1, 0, 1, 128),
            (1, 2, 0, 128),
            (1, 1, 2, 128),
            (1, 3, 3, 192),
            (1, 2, 1, 64),
            (1, 2, 1, 0),
            (1, 2, 2, 72),
            (4096, 2, 2, u64::MAX - 63),
            (2, 1, 1, 1 << 40),
        ] {
            assert!(
                Shape::new(layers, tensors, per_layer, bytes).is_err(),
                "{layers} {tensors} {per_layer} {bytes}"
            );
        }
    }

    #[test]
    fn places_name_layer_tensor_and_position() {
        let joined = LLAMA_3_8B.shape(512, Pieces::Layer).expect("fits");
        let apart = LLAMA_3_8B.shape(512, Pieces::Tensor).expect("fits");
        let latent = DEEPSEEK_V3.shape(512, Pieces::Layer).expect("fits");
        let place = |layer, tensor, position| Place { layer, tensor, position };
        assert_eq!(joined.place(3, 5), place(3, Tensor::Key, 5));
        assert_eq!(joined.place(3, 2048), place(3, Tensor::Value, 0));
        assert_eq!(apart.place(6, 5), place(3, Tensor::Key, 5));
        assert_eq!(apart.place(7, 0), place(3, Tensor::Value, 0));
        assert_eq!(latent.place(60, 7), place(60, Tensor::Latent, 7));
        assert_eq!(joined.place(3, 2050).to_string(), "layer 3, V, byte 2");
    }

    proptest! {
        #[test]
        fn a_scaled_block_keeps_about_its_part(model in 0..4_usize, scale in 1_u64..40_000) {
            let model = MODELS[model];
            let full = model.shape(1, Pieces::Tensor).expect("full").piece_bytes();
            match model.shape(scale, Pieces::Tensor) {
                Ok(shape) => {
                    prop_assert!(shape.piece_bytes() * scale >= full);
                    prop_assert!(shape.piece_bytes() < full / scale + 1 + PIECE_ALIGN);
                    prop_assert_eq!(shape.piece_bytes() % PIECE_ALIGN, 0);
                    prop_assert_eq!(model.shape(scale, Pieces::Layer).map(|s| s.block_bytes()), Ok(shape.block_bytes()));
                }
                Err(error) => prop_assert!(scale > full / PIECE_ALIGN, "{error}"),
            }
        }
    }
}
