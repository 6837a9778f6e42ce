//! Reading and writing MessagePack arrays field by field: descriptors, and whatever else of ours crosses between programs.
//!
//! The reader works on the received bytes in place: it allocates nothing, takes no length at its word, follows no nesting
//! by recursion, and says for every refusal which field of what is wrong and where. Every refusal is
//! [`ErrorKind::Malformed`].
//!
//! ```
//! use mori_core::pack::{Reader, Writer};
//! let mut writer = Writer::array(2);
//! writer.uint(7u32);
//! writer.text("seven");
//! let bytes = writer.into_vec();
//! let mut reader = Reader::open("number", &bytes, 2, 1024)?;
//! assert_eq!((reader.int::<u8>("value")?, reader.text("name", 16)?), (7, "seven"));
//! // A field that an older writer does not know has a default.
//! assert_eq!(reader.or(1, |reader| reader.int("weight"))?, 1);
//! reader.finish()?;
//! # Ok::<(), mori_core::Error>(())
//! ```

use rmp::Marker;
use rmp::encode::{ByteBuf, write_array_len, write_bin, write_sint, write_str, write_uint};

use crate::error::{Error, ErrorKind, Result};

/// What stands at the reader's place: a value, or the head of one whose bytes or members follow.
enum Head {
    Int(i128),
    Text(usize),
    Bytes(usize),
    Array(u32),
    Map(u32),
    Extension(usize),
    /// A value that no descriptor uses, by the name that an error gives it, and how many bytes of it follow.
    Other(&'static str, usize),
}

impl Head {
    fn name(&self) -> &'static str {
        match self {
            Self::Int(_) => "a whole number",
            Self::Text(_) => "text",
            Self::Bytes(_) => "bytes",
            Self::Array(_) => "an array",
            Self::Map(_) => "a map",
            Self::Extension(_) => "an extension",
            Self::Other(name, _) => name,
        }
    }
}

/// Reads the fields of one array after the other.
#[derive(Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
    length: usize,
    /// What is read, for errors: "engine descriptor".
    what: &'static str,
    /// The field that is being read, for errors.
    field: &'static str,
    /// How many fields of the current array have not been read.
    left: u32,
}

impl<'a> Reader<'a> {
    /// Opens `bytes`, which are at most `most`, as an array of at least `required` fields; `what` names it in errors.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Malformed`], as for every other method of the reader.
    pub fn open(what: &'static str, bytes: &'a [u8], required: u32, most: usize) -> Result<Self> {
        if bytes.len() > most {
            return Err(Error::new(
                ErrorKind::Malformed,
                format!("the {what} has {} bytes; at most {most} are read", bytes.len()),
            ));
        }
        let mut reader = Self { rest: bytes, length: bytes.len(), what, field: "the head", left: 1 };
        reader.left = reader.array_of(required)?;
        Ok(reader)
    }

    /// The error for the field that is being read.
    #[must_use]
    pub fn refuse(&self, why: impl std::fmt::Display) -> Error {
        Error::new(
            ErrorKind::Malformed,
            format!("{} of the {} is wrong before byte {}: {why}", self.field, self.what, self.at()),
        )
    }

    fn at(&self) -> usize {
        self.length - self.rest.len()
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8]> {
        match self.rest.split_at_checked(count) {
            Some((taken, rest)) => {
                self.rest = rest;
                Ok(taken)
            }
            None => Err(self.refuse(format_args!(
                "it is cut off, {count} more bytes are needed and {} are there",
                self.rest.len()
            ))),
        }
    }

    /// A number of `N` bytes, most significant first, as MessagePack has them on every machine.
    fn big_endian<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut number = [0; N];
        number.copy_from_slice(self.take(N)?);
        Ok(number)
    }

    fn length8(&mut self) -> Result<usize> {
        Ok(usize::from(u8::from_be_bytes(self.big_endian()?)))
    }

    fn length16(&mut self) -> Result<usize> {
        Ok(usize::from(u16::from_be_bytes(self.big_endian()?)))
    }

    fn length32(&mut self) -> Result<usize> {
        // On a machine with smaller addresses the length is beyond the frame either way.
        Ok(usize::try_from(u32::from_be_bytes(self.big_endian()?)).unwrap_or(usize::MAX))
    }

    fn head(&mut self) -> Result<Head> {
        let [first] = self.big_endian()?;
        Ok(match Marker::from_u8(first) {
            Marker::FixPos(number) => Head::Int(number.into()),
            Marker::FixNeg(number) => Head::Int(number.into()),
            Marker::U8 => Head::Int(u8::from_be_bytes(self.big_endian()?).into()),
            Marker::U16 => Head::Int(u16::from_be_bytes(self.big_endian()?).into()),
            Marker::U32 => Head::Int(u32::from_be_bytes(self.big_endian()?).into()),
            Marker::U64 => Head::Int(u64::from_be_bytes(self.big_endian()?).into()),
            Marker::I8 => Head::Int(i8::from_be_bytes(self.big_endian()?).into()),
            Marker::I16 => Head::Int(i16::from_be_bytes(self.big_endian()?).into()),
            Marker::I32 => Head::Int(i32::from_be_bytes(self.big_endian()?).into()),
            Marker::I64 => Head::Int(i64::from_be_bytes(self.big_endian()?).into()),
            Marker::FixStr(length) => Head::Text(length.into()),
            Marker::Str8 => Head::Text(self.length8()?),
            Marker::Str16 => Head::Text(self.length16()?),
            Marker::Str32 => Head::Text(self.length32()?),
            Marker::Bin8 => Head::Bytes(self.length8()?),
            Marker::Bin16 => Head::Bytes(self.length16()?),
            Marker::Bin32 => Head::Bytes(self.length32()?),
            Marker::FixArray(count) => Head::Array(count.into()),
            Marker::Array16 => Head::Array(u16::from_be_bytes(self.big_endian()?).into()),
            Marker::Array32 => Head::Array(u32::from_be_bytes(self.big_endian()?)),
            Marker::FixMap(count) => Head::Map(count.into()),
            Marker::Map16 => Head::Map(u16::from_be_bytes(self.big_endian()?).into()),
            Marker::Map32 => Head::Map(u32::from_be_bytes(self.big_endian()?)),
            // The type's byte of an extension counts as one of its bytes.
            Marker::FixExt1 => Head::Extension(2),
            Marker::FixExt2 => Head::Extension(3),
            Marker::FixExt4 => Head::Extension(5),
            Marker::FixExt8 => Head::Extension(9),
            Marker::FixExt16 => Head::Extension(17),
            Marker::Ext8 => Head::Extension(self.length8()?.saturating_add(1)),
            Marker::Ext16 => Head::Extension(self.length16()?.saturating_add(1)),
            Marker::Ext32 => Head::Extension(self.length32()?.saturating_add(1)),
            Marker::Null => Head::Other("nothing", 0),
            Marker::True | Marker::False => Head::Other("a truth value", 0),
            Marker::F32 => Head::Other("a fraction", 4),
            Marker::F64 => Head::Other("a fraction", 8),
            Marker::Reserved => return Err(self.refuse("the byte 0xc1 begins no MessagePack value")),
        })
    }

    fn begin(&mut self, field: &'static str) {
        self.field = field;
        self.left = self.left.saturating_sub(1);
    }

    fn expected(&self, expected: &str, found: &Head) -> Error {
        self.refuse(format_args!("{expected} is expected, and {} is there", found.name()))
    }

    /// The next field of the array, or `missing` if the array has no more.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Malformed`].
    pub fn or<T>(&mut self, missing: T, read: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if self.left == 0 { Ok(missing) } else { read(self) }
    }

    /// A whole number in the range of `T`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Malformed`].
    pub fn int<T: TryFrom<i128>>(&mut self, field: &'static str) -> Result<T> {
        self.begin(field);
        match self.head()? {
            Head::Int(number) => {
                T::try_from(number).map_err(|_| self.refuse(format_args!("{number} is out of range")))
            }
            other => Err(self.expected("a whole number", &other)),
        }
    }

    /// Text of at most `most` bytes.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Malformed`].
    pub fn text(&mut self, field: &'static str, most: usize) -> Result<&'a str> {
        self.begin(field);
        match self.head()? {
            Head::Text(length) if length > most => Err(self.too_long(length, most)),
            Head::Text(length) => {
                let bytes = self.take(length)?;
                std::str::from_utf8(bytes).map_err(|error| self.refuse(error))
            }
            other => Err(self.expected("text", &other)),
        }
    }

    /// At most `most` bytes.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Malformed`].
    pub fn bytes(&mut self, field: &'static str, most: usize) -> Result<&'a [u8]> {
        self.begin(field);
        match self.head()? {
            Head::Bytes(length) if length > most => Err(self.too_long(length, most)),
            Head::Bytes(length) => self.take(length),
            other => Err(self.expected("bytes", &other)),
        }
    }

    /// Exactly `N` bytes.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Malformed`].
    pub fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N]> {
        let bytes = self.bytes(field, N)?;
        bytes
            .try_into()
            .map_err(|_| self.refuse(format_args!("{N} bytes are expected, and {} are there", bytes.len())))
    }

    fn too_long(&self, length: usize, most: usize) -> Error {
        self.refuse(format_args!("it claims {length} bytes; at most {most} are read"))
    }

    /// The head of an array of at least `required` members, which are then to be read.
    fn array_of(&mut self, required: u32) -> Result<u32> {
        let count = match self.head()? {
            Head::Array(count) => count,
            other => return Err(self.expected("an array", &other)),
        };
        // Each member takes a byte or more, so such a count cannot be true.
        if usize::try_from(count).is_ok_and(|count| count > self.rest.len()) {
            return Err(self.refuse(format_args!(
                "an array of {count} members cannot stand in {} bytes; it is cut off, or its numbers are of another \
                 byte order",
                self.rest.len()
            )));
        }
        if count < required {
            return Err(
                self.refuse(format_args!("an array of {count} members is too short; {required} are needed"))
            );
        }
        Ok(count)
    }

    /// A field that is a list of at most `most` arrays of at least `required` members each.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Malformed`].
    pub fn list<T>(
        &mut self,
        field: &'static str,
        most: u32,
        required: u32,
        mut read: impl FnMut(&mut Self) -> Result<T>,
    ) -> Result<Vec<T>> {
        self.begin(field);
        let outer = self.left;
        let count = self.array_of(0)?;
        if count > most {
            return Err(self.refuse(format_args!("it claims {count} entries; at most {most} are read")));
        }
        let mut entries = Vec::new();
        for _ in 0..count {
            self.field = field;
            self.left = self.array_of(required)?;
            entries.push(read(self)?);
            self.drain()?;
        }
        self.left = outer;
        Ok(entries)
    }

    /// A field that is one array of at least `required` members, which `read` reads; further ones are skipped.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Malformed`].
    pub fn group<T>(
        &mut self,
        field: &'static str,
        required: u32,
        read: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<T> {
        self.begin(field);
        let outer = self.left;
        self.left = self.array_of(required)?;
        let group = read(self)?;
        self.drain()?;
        self.left = outer;
        Ok(group)
    }

    /// Skips what a later version has added to the current array.
    fn drain(&mut self) -> Result<()> {
        self.field = "a further field";
        // Counts values, so that nesting costs no stack; every one of them takes a byte, so it ends.
        let mut values = u64::from(self.left);
        while values > 0 {
            values -= 1;
            match self.head()? {
                Head::Int(_) => {}
                Head::Text(length)
                | Head::Bytes(length)
                | Head::Extension(length)
                | Head::Other(_, length) => {
                    self.take(length)?;
                }
                Head::Array(count) => values = values.saturating_add(u64::from(count)),
                Head::Map(count) => values = values.saturating_add(2 * u64::from(count)),
            }
        }
        self.left = 0;
        Ok(())
    }

    /// Skips further fields and checks that nothing follows the array.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Malformed`].
    pub fn finish(mut self) -> Result<()> {
        self.drain()?;
        if self.rest.is_empty() {
            return Ok(());
        }
        self.field = "the end";
        Err(self.refuse(format_args!("{} more bytes follow, which belong to nothing", self.rest.len())))
    }
}

/// Writes fields one after the other, each in its shortest form.
#[derive(Debug)]
pub struct Writer(ByteBuf);

impl Writer {
    /// An array of `fields` fields, which are then to be written.
    #[must_use]
    pub fn array(fields: u32) -> Self {
        let mut writer = Self(ByteBuf::new());
        writer.list(fields);
        writer
    }

    // Writing to a buffer cannot fail: the error type has no values.

    /// An array of `members` members, which are then to be written.
    pub fn list(&mut self, members: u32) {
        let Ok(_) = write_array_len(&mut self.0, members);
    }

    /// Text.
    pub fn text(&mut self, text: &str) {
        let Ok(()) = write_str(&mut self.0, text);
    }

    /// Bytes.
    pub fn bytes(&mut self, bytes: &[u8]) {
        let Ok(()) = write_bin(&mut self.0, bytes);
    }

    /// A number without a sign.
    pub fn uint(&mut self, number: impl Into<u64>) {
        let Ok(_) = write_uint(&mut self.0, number.into());
    }

    /// A number.
    pub fn sint(&mut self, number: impl Into<i64>) {
        let Ok(_) = write_sint(&mut self.0, number.into());
    }

    /// What has been written.
    #[must_use]
    pub fn into_vec(self) -> Vec<u8> {
        self.0.into_vec()
    }
}
