//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::bench::args::BenchArgs;
use crate::doctor::args::DoctorArgs;
use crate::model::{LLAMA_3_8B, MODELS, Model, Pieces};

/// Requests that are generated when nobody says how many.
pub const GENERATED_REQUESTS: u64 = 500;
/// The scale when nobody says one: a block of Llama-3-8B is then 128 KiB.
pub const DEFAULT_SCALE: u64 = 512;
/// Blocks in the pool of a serving process when nobody says how many.
pub const POOL_BLOCKS: u32 = 4096;
/// The longest time that an option takes.
const LONGEST_SECONDS: f64 = 86_400.0 * 365.0;

/// Move KV-cache blocks between two processes, driven by a trace of requests, and check every byte.
#[derive(Debug, Parser)]
#[command(name = "mori", version, arg_required_else_help = false)]
#[command(disable_help_subcommand = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Replay a trace: read the blocks that each request lacks, and check every byte
    Replay(Box<ReplayArgs>),
    /// Serve blocks to replays, and memory to measurements, until it is stopped
    Serve(Box<ServeArgs>),
    /// Look at what this machine and a peer can do, and say why a transport does not work
    Doctor(Box<DoctorArgs>),
    /// Measure a sweep of sizes and batches, or what is left of a transfer after its end
    Bench(Box<BenchArgs>),
}

/// Options of `mori replay`.
#[derive(Debug, Clone, Args)]
pub struct ReplayArgs {
    /// Trace to replay, JSON lines; without one, requests are generated
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Stop after N requests [default: all of a trace, 500 generated]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub requests: Option<u64>,
    /// Seed of the generator and of the order of cache slots
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
    /// Run X times as fast as the trace's clock [default: without pauses]
    #[arg(long, value_name = "X", value_parser = parse_factor)]
    pub speed: Option<f64>,
    /// The blocks to move.
    #[command(flatten)]
    pub shape: ShapeArgs,
    /// Blocks in the decode cache
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..))]
    pub cache_blocks: u32,
    /// Size of the decode cache instead, as in 512MiB
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes, conflicts_with = "cache_blocks")]
    pub cache: Option<u64>,
    /// Blocks in the pool of the server started here [default: 4096]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), conflicts_with = "target")]
    pub pool_blocks: Option<u32>,
    /// Its --device [default: the next one with xgmi, the same with rdma]
    #[arg(long, value_name = "N|NAMES", conflicts_with = "target")]
    pub pool_device: Option<String>,
    /// Address of a running `mori serve`; without, one is started here
    #[arg(long, value_name = "HOST:PORT")]
    pub target: Option<String>,
    /// How bytes move.
    #[command(flatten)]
    pub link: LinkArgs,
    /// Bound on the waits of one request, in seconds
    #[arg(long, value_name = "S", default_value = "30", value_parser = parse_seconds)]
    pub timeout: Duration,
    /// When the peer is lost, wait for it to come back and go on
    #[arg(long)]
    pub keep_going: bool,
    /// How long to wait for it, in seconds
    #[arg(long, value_name = "S", default_value = "60", value_parser = parse_seconds)]
    pub reconnect_timeout: Duration,
    /// Do not verify the bytes
    #[arg(long)]
    pub no_verify: bool,
    /// Verify every byte; this is the default
    #[arg(long, conflicts_with = "no_verify", hide = true)]
    pub verify: bool,
    /// Print the result as one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Options of `mori serve`.
#[derive(Debug, Clone, Args)]
pub struct ServeArgs {
    /// Where replays connect; port 0 is a free one
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:0")]
    pub listen: String,
    /// Address for the data [default: the host of --listen, a free port]
    #[arg(long, value_name = "HOST:PORT")]
    pub data_listen: Option<String>,
    /// Host that replays are told to use for the data
    #[arg(long, value_name = "HOST")]
    pub advertise: Option<String>,
    /// The blocks to serve.
    #[command(flatten)]
    pub shape: ShapeArgs,
    /// Blocks in the pool
    #[arg(long, value_name = "N", default_value_t = POOL_BLOCKS, value_parser = clap::value_parser!(u32).range(1..))]
    pub pool_blocks: u32,
    /// Memory for `mori bench`, twice: to read from and to write to
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub scratch: Option<u64>,
    /// Where it listens for the raw sockets of `mori bench --baseline`
    #[arg(long, value_name = "HOST:PORT", requires = "scratch")]
    pub raw_listen: Option<String>,
    /// How bytes move.
    #[command(flatten)]
    pub link: LinkArgs,
    /// Log errors only: whoever started this process expects the rest
    #[arg(long, hide = true)]
    pub quiet: bool,
    /// End when standard input does
    #[arg(long)]
    pub exit_with_parent: bool,
}

/// The shape of a block.
#[derive(Debug, Clone, Args)]
pub struct ShapeArgs {
    /// llama-3-8b (default), llama-3-70b, deepseek-v3 or qwen-2.5-7b
    #[arg(long, value_name = "NAME", value_parser = parse_model)]
    pub model: Option<Model>,
    /// Keep 1/N of the bytes of a block [default: 512]
    #[arg(long, value_name = "N")]
    pub scale: Option<u64>,
    /// One piece a layer (default), or K and V apart
    #[arg(long, value_name = "layer|tensor", hide_possible_values = true)]
    pub pieces: Option<PiecesArg>,
}

impl ShapeArgs {
    /// The model, by default Llama-3-8B.
    pub fn model(&self) -> Model {
        self.model.unwrap_or(LLAMA_3_8B)
    }

    /// The scale, by default [`DEFAULT_SCALE`].
    pub fn scale(&self) -> u64 {
        self.scale.unwrap_or(DEFAULT_SCALE)
    }

    /// How a block is cut, by default one piece a layer.
    pub fn pieces(&self) -> Pieces {
        self.pieces.map_or(Pieces::Layer, Pieces::from)
    }
}

/// How a layer's part of a block is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PiecesArg {
    /// One piece a layer.
    Layer,
    /// One piece for each of K and V.
    Tensor,
}

impl From<PiecesArg> for Pieces {
    fn from(arg: PiecesArg) -> Self {
        match arg {
            PiecesArg::Layer => Self::Layer,
            PiecesArg::Tensor => Self::Tensor,
        }
    }
}

/// How bytes move.
#[derive(Debug, Clone, Args)]
pub struct LinkArgs {
    /// auto (shm or else tcp), shm, tcp, rdma or xgmi
    #[arg(long, value_name = "NAME", default_value = "auto", value_parser = parse_transport)]
    pub transport: Transport,
    /// A number with xgmi, names with rdma [default: 0, or all]
    #[arg(long, value_name = "N|NAMES")]
    pub device: Option<String>,
    /// Connections to each peer, with rdma on each device
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub connections: u16,
    /// Threads that move bytes
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub threads: u16,
    /// When a silent peer counts as lost, in seconds
    #[arg(long, value_name = "S", default_value = "10", value_parser = parse_peer_timeout)]
    pub peer_timeout: Duration,
    /// File with the secret that both sides share
    #[arg(long, value_name = "FILE")]
    pub secret_file: Option<PathBuf>,
}

impl LinkArgs {
    /// The same options for a serving process that is started here, with its own device if devices count.
    pub fn of_server(&self, device: Option<String>) -> Vec<OsString> {
        let mut options: Vec<OsString> = Vec::new();
        let mut option = |name: &str, value: OsString| options.extend([OsString::from(name), value]);
        option("--transport", self.transport.to_string().into());
        if let Some(device) = device {
            option("--device", device.into());
        }
        option("--connections", self.connections.to_string().into());
        option("--threads", self.threads.to_string().into());
        option("--peer-timeout", self.peer_timeout.as_secs_f64().to_string().into());
        if let Some(secret) = &self.secret_file {
            option("--secret-file", secret.into());
        }
        options
    }
}

/// The transports of this program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// Copies between processes where both are on one host and may, else TCP.
    Auto,
    /// Copies between the processes of one host.
    Shm,
    /// TCP.
    Tcp,
    /// Verbs over InfiniBand and RoCE.
    Rdma,
    /// Peer access between the GPUs of one node.
    Xgmi,
}

impl std::fmt::Display for Transport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Shm => "shm",
            Self::Tcp => "tcp",
            Self::Rdma => "rdma",
            Self::Xgmi => "xgmi",
        })
    }
}

/// What the command line asks for instead of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Instead {
    /// Help or the version: this text on standard output, and all is well.
    Show(String),
    /// The command line is wrong: this line on standard error.
    Wrong(String),
}

/// Parses a command line.
///
/// # Errors
///
/// [`Instead`].
pub fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Cli, Instead> {
    Cli::try_parse_from(args).map_err(|error| match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => Instead::Show(error.render().to_string()),
        _ => Instead::Wrong(one_line(&error.render().to_string())),
    })
}

/// The first paragraph of an error on one line, and where to read more.
fn one_line(text: &str) -> String {
    let paragraph = text.trim().split("\n\n").next().unwrap_or_default();
    let words: Vec<&str> = paragraph.split_whitespace().collect();
    let line = words.join(" ");
    let line = line.strip_prefix("error: ").unwrap_or(&line);
    format!("{line} (see --help)")
}

fn parse_model(text: &str) -> Result<Model, String> {
    Model::named(text).ok_or_else(|| {
        let names: Vec<_> = MODELS.iter().map(|model| model.name).collect();
        format!("the models are {}", names.join(", "))
    })
}

fn parse_transport(text: &str) -> Result<Transport, String> {
    match text {
        "auto" => Ok(Transport::Auto),
        "shm" => Ok(Transport::Shm),
        "tcp" => Ok(Transport::Tcp),
        "rdma" => Ok(Transport::Rdma),
        "xgmi" => Ok(Transport::Xgmi),
        _ => Err("the transports are auto, shm, tcp, rdma and xgmi".to_owned()),
    }
}

pub(crate) fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| *seconds > 0.0 && *seconds <= LONGEST_SECONDS);
    seconds
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        .filter(|time| !time.is_zero())
        .ok_or_else(|| "a number of seconds above 0 and at most a year is needed".to_owned())
}

fn parse_peer_timeout(text: &str) -> Result<Duration, String> {
    let time = parse_seconds(text)?;
    if time < Duration::from_millis(10) { Err("0.01 seconds are the least".to_owned()) } else { Ok(time) }
}

fn parse_factor(text: &str) -> Result<f64, String> {
    let factor = text.parse::<f64>().ok().filter(|factor| factor.is_finite() && *factor > 0.0);
    factor.ok_or_else(|| "a number above 0 is needed".to_owned())
}

/// Parses `123`, `4KiB`, `1.5GiB`, `2GB`.
pub(crate) fn parse_bytes(text: &str) -> Result<u64, String> {
    let wrong = || "a size is needed, as in 512MiB, 2GB or 1.5GiB".to_owned();
    let split = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let factor = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 1_u64,
        "kib" | "k" => 1 << 10,
        "mib" | "m" => 1 << 20,
        "gib" | "g" => 1 << 30,
        "tib" | "t" => 1 << 40,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        _ => return Err(wrong()),
    };
    let number = number.trim();
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(factor).filter(|bytes| *bytes > 0).ok_or_else(wrong);
    }
    let bytes = number.parse::<f64>().map_err(|_| wrong())? * factor as f64;
    if bytes >= 1.0 && bytes < u64::MAX as f64 { Ok(bytes as u64) } else { Err(wrong()) }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn parse_words(line: &str) -> Result<Cli, Instead> {
        parse(line.split_whitespace().map(OsString::from))
    }

    fn replay(line: &str) -> ReplayArgs {
        match parse_words(&format!("mori replay {line}")) {
            Ok(Cli { command: Command::Replay(args) }) => *args,
            other => panic!("{line}: {other:?}"),
        }
    }

    fn wrong(line: &str) -> String {
        match parse_words(line) {
            Err(Instead::Wrong(text)) => text,
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn defaults_are_as_documented() {
        let args = replay("");
        assert_eq!((args.shape.model(), args.shape.scale()), (LLAMA_3_8B, 512));
        assert_eq!((args.cache_blocks, args.seed, args.requests), (4096, 0, None));
        assert_eq!(args.timeout, Duration::from_secs(30));
        assert_eq!(args.link.peer_timeout, Duration::from_secs(10));
        assert!(!args.keep_going && !args.no_verify && !args.json && args.speed.is_none());
    }

    #[test]
    fn options_are_taken() {
        let args =
            replay("--speed 2.5 --timeout 0.5 --cache 1.5GiB --model deepseek-v3 --pieces tensor --verify");
        assert_eq!((args.speed, args.timeout), (Some(2.5), Duration::from_millis(500)));
        assert_eq!(args.cache, Some(3 << 29));
        assert_eq!(args.shape.model().name, "deepseek-v3");
        assert_eq!(args.shape.pieces(), Pieces::Tensor);
        for name in ["auto", "shm", "tcp", "rdma"] {
            assert_eq!(replay(&format!("--transport {name}")).link.transport.to_string(), name);
        }
        assert_eq!(replay("").link.transport, Transport::Auto);
        let args = replay("--transport xgmi --device 3 --pool-device 5");
        assert_eq!((args.link.transport, args.link.device.as_deref()), (Transport::Xgmi, Some("3")));
        assert_eq!(args.pool_device.as_deref(), Some("5"));
    }

    #[test]
    fn what_is_wrong_is_said_on_one_line() {
        for (line, says) in [
            ("mori", "subcommand"),
            ("mori fly", "fly"),
            ("mori replay --fly", "--fly"),
            ("mori replay stray", "stray"),
            ("mori replay --requests 0", "0 is not in 1.."),
            ("mori replay --requests many", "many"),
            ("mori replay --requests -5", "-5"),
            ("mori replay --model gpt", "llama-3-70b"),
            ("mori replay --target a:1 --pool-device 1", "cannot be used with"),
            ("mori replay --device -1", "-1"),
            ("mori replay --transport pigeon", "the transports are"),
            ("mori replay --speed 0", "above 0"),
            ("mori replay --speed inf", "above 0"),
            ("mori replay --timeout nan", "seconds"),
            ("mori replay --timeout 0", "seconds"),
            ("mori replay --timeout 1e300", "seconds"),
            ("mori replay --peer-timeout 0.001", "0.01"),
            ("mori replay --cache 5xb", "a size is needed"),
            ("mori replay --cache 0", "a size is needed"),
            ("mori replay --cache 99999999999TiB", "a size is needed"),
            ("mori replay --cache 1GiB --cache-blocks 5", "cannot be used with"),
            ("mori replay --target a:1 --pool-blocks 5", "cannot be used with"),
            ("mori replay --connections 65", "65"),
            ("mori replay --pieces some", "some"),
            ("mori replay --trace", "--trace"),
            ("mori serve --pool-blocks 0", "0"),
            ("mori serve --pool-blocks 4294967296", "4294967296"),
        ] {
            let text = wrong(line);
            assert!(text.contains(says), "{line}: {text}");
            assert!(!text.contains('\n') && text.len() < 200, "{line}: {text}");
        }
    }

    #[test]
    fn each_help_fits_a_screen() {
        for line in [
            "mori --help",
            "mori replay --help",
            "mori serve --help",
            "mori doctor --help",
            "mori bench --help",
            "mori bench compare --help",
            "mori replay -h",
        ] {
            let Err(Instead::Show(text)) = parse_words(line) else { panic!("{line} shows help") };
            assert!(text.lines().count() <= 30, "{line}: {} lines\n{text}", text.lines().count());
            assert!(text.lines().all(|l| l.chars().count() <= 100), "{line}\n{text}");
        }
    }

    #[test]
    fn sizes_are_read() {
        for (text, bytes) in
            [("1", 1), ("4k", 4096), ("1.5KiB", 1536), ("2GB", 2_000_000_000), ("1 MiB", 1 << 20)]
        {
            assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
        }
    }
}
