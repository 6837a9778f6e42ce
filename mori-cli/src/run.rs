//! The program from the command line to the exit status.

use std::ffi::OsString;
use std::io::{self, Write};

use crate::args::{self, Command, GENERATED_REQUESTS, Instead, ReplayArgs};
use crate::bench;
use crate::control::Description;
use crate::doctor;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::fetch::{FailureKind, Fetcher};
use crate::generate::Generator;
use crate::layout::Layout;
use crate::link::{EngineFetcher, Launch, Server};
use crate::machine;
use crate::medium::Medium;
use crate::model::Pieces;
use crate::node;
use crate::pace::RealPace;
use crate::replay::{End, Options, Replay};
use crate::report::{Report, Setup};
use crate::screen::Screen;
use crate::serve;
use crate::stop::Stop;
use crate::tally::Tally;
use crate::trace::{Request, TraceError, TraceReader};

/// The variable that says what is logged, in the syntax of `tracing`'s filters. By default a server logs warnings and a
/// replay errors, since it tells what went wrong in its own words.
const LOG_VARIABLE: &str = "MORI_LOG";

/// A trace, read or generated.
type Requests = Box<dyn Iterator<Item = Result<Request, TraceError>>>;

/// Runs the program with a command line, the program's name first, and returns its exit status.
pub fn run(command_line: impl IntoIterator<Item = OsString>) -> Exit {
    let cli = match args::parse(command_line) {
        Ok(cli) => cli,
        Err(Instead::Show(text)) => return print(&text),
        Err(Instead::Wrong(line)) => {
            complain(&line);
            return Exit::Usage;
        }
    };
    log(match &cli.command {
        Command::Serve(args) if args.quiet => "error",
        Command::Serve(_) => "warn",
        Command::Replay(_) | Command::Bench(_) | Command::Doctor(_) => "error",
    });
    let stop = Stop::new();
    let outcome = match stop.watch_signals() {
        Err(error) => Err(Failure::internal(format!("cannot watch for signals: {error}"))),
        Ok(()) => match cli.command {
            Command::Serve(args) => serve::serve(&args, &stop, &mut io::stdout()).map(|()| Exit::Ok),
            Command::Replay(args) => replay(&args, &stop),
            Command::Bench(args) => bench::bench(&args, &stop),
            Command::Doctor(args) => doctor::doctor(&args),
        },
    };
    outcome.unwrap_or_else(|failure| {
        complain(&failure.message);
        failure.exit
    })
}

/// Logs to standard error.
fn log(default: &str) {
    let filter = tracing_subscriber::EnvFilter::try_from_env(LOG_VARIABLE)
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new(default));
    let logger = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
    // Another logger may be there already when this runs inside of a larger program.
    let _ = logger.try_init();
}

fn complain(line: &str) {
    // Nobody may be reading; the exit status says it as well.
    let _ = writeln!(io::stderr().lock(), "mori: {line}");
}

/// Writes to standard output. A reader that has gone away has read enough.
pub(crate) fn print(text: &str) -> Exit {
    let mut out = io::stdout().lock();
    match writeln!(out, "{}", text.trim_end()).and_then(|()| out.flush()) {
        Ok(()) => Exit::Ok,
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Exit::Ok,
        Err(error) => {
            complain(&format!("cannot write to standard output: {error}"));
            Exit::Internal
        }
    }
}

fn replay(args: &ReplayArgs, stop: &Stop) -> Result<Exit, Failure> {
    let (trace, requests, count) = open_trace(args)?;
    let secret = node::read_secret(args.link.secret_file.as_deref())?;
    // What this machine does not have is told before anything is started.
    let medium = Medium::of_replay(&args.link, secret.as_ref())?;
    let server = find_server(args, &medium)?;
    let description = server.describe(secret.as_ref(), None).map_err(Failure::server)?;
    check_agreement(args, &description)?;
    let remote_layout = description.layout().map_err(Failure::server)?;
    let shape = *remote_layout.shape();
    let layout = Layout::new(shape, cache_blocks(args, shape.block_bytes())?).map_err(Failure::usage)?;

    let mut fetcher = EngineFetcher::new(&medium, layout, server, &description, secret, stop.clone())?;
    let mut setup = Setup {
        trace,
        seed: args.seed,
        model: description.model.clone(),
        scale: description.scale,
        block_bytes: shape.block_bytes(),
        block_pieces: shape.pieces(),
        cache_blocks: layout.slots(),
        pool_blocks: remote_layout.slots(),
        transport: fetcher.remote().transport.clone(),
        detour: fetcher.remote().detour.clone(),
        memory: medium.memory(),
        peer: fetcher.remote().peer.clone(),
        verified: !args.no_verify,
    };
    let options = Options {
        bound: args.timeout,
        keep_going: args.keep_going.then_some(args.reconnect_timeout),
        verify: !args.no_verify,
        speed: args.speed,
    };
    let pace = RealPace::new(stop.clone());
    let mut screen = Screen::new(count);
    let cpu_before = machine::cpu_time();
    let (tally, end) =
        Replay::new(&mut fetcher, &mut screen, &pace, layout, args.seed, options).run(requests);
    let cpu_replay = machine::cpu_time().saturating_sub(cpu_before);
    screen.clear();
    // It may have been restarted, with another pool.
    let remote = fetcher.remote();
    setup.peer.clone_from(&remote.peer);
    setup.transport.clone_from(&remote.transport);
    setup.detour.clone_from(&remote.detour);
    setup.pool_blocks = fetcher.remote().layout.slots();

    let (exit, reason) = verdict(&tally, &end);
    // A lost peer does not answer; asking it would only cost time.
    let cpu_serve = if matches!(end, End::PeerLost { .. }) { None } else { fetcher.server_cpu() };
    let report = Report { setup: &setup, tally: &tally, exit, reason: &reason, cpu_replay, cpu_serve };
    if exit != Exit::Ok {
        screen.line(&reason);
    }
    let text = if args.json { report.json().map_err(Failure::internal)? } else { report.table() };
    let printed = print(&text);
    Ok(if exit == Exit::Ok { printed } else { exit })
}

/// The trace's name, its requests, and how many, if that is known.
fn open_trace(args: &ReplayArgs) -> Result<(String, Requests, Option<u64>), Failure> {
    let bad = |error: TraceError| Failure { exit: Exit::BadTrace, message: error.to_string() };
    let limit = usize::try_from(args.requests.unwrap_or(u64::MAX)).unwrap_or(usize::MAX);
    let Some(path) = &args.trace else {
        let count = args.requests.unwrap_or(GENERATED_REQUESTS);
        let requests = Generator::new(args.seed).map(Ok);
        let requests = requests.take(usize::try_from(count).unwrap_or(usize::MAX));
        return Ok(("generated".to_owned(), Box::new(requests), Some(count)));
    };
    let mut reader = TraceReader::open(path).map_err(bad)?;
    // A file that is no trace is told before anything is started for it.
    let first = reader.next().transpose().map_err(bad)?;
    let requests = first.map(Ok).into_iter().chain(reader).take(limit);
    Ok((path.display().to_string(), Box::new(requests), args.requests))
}

/// The server to read from: the one that runs at the target, or one of our own.
fn find_server(args: &ReplayArgs, medium: &Medium) -> Result<Server, Failure> {
    if let Some(target) = &args.target {
        return Ok(Server::At(target.clone()));
    }
    // Whatever is wrong with the shape is told here rather than by the other process.
    let shape = args.shape.model().shape(args.shape.scale(), args.shape.pieces()).map_err(Failure::usage)?;
    let blocks = args.pool_blocks.unwrap_or(args::POOL_BLOCKS);
    let layout = Layout::new(shape, blocks).map_err(Failure::usage)?;
    let device = medium.server_device(&args.link, args.pool_device.as_deref())?;
    if device.is_none() {
        layout.check_fits(machine::available_memory().unwrap_or(u64::MAX)).map_err(Failure::usage)?;
    }
    let program = std::env::current_exe()
        .map_err(|error| Failure::server(format!("cannot find this program to start it again: {error}")))?;
    Server::start(Launch { program, args: serve_command(args, blocks, device) })
}

/// The command line of a serving process that fits this replay.
fn serve_command(args: &ReplayArgs, blocks: u32, device: Option<String>) -> Vec<OsString> {
    let mut command: Vec<OsString> = vec!["serve".into(), "--exit-with-parent".into()];
    let mut option = |name: &str, value: OsString| command.extend([OsString::from(name), value]);
    option("--model", args.shape.model().name.into());
    option("--scale", args.shape.scale().to_string().into());
    let pieces = match args.shape.pieces() {
        Pieces::Layer => "layer",
        Pieces::Tensor => "tensor",
    };
    option("--pieces", pieces.into());
    option("--pool-blocks", blocks.to_string().into());
    command.extend(args.link.of_server(device));
    command
}

/// What the command line says about the blocks must be so at a target.
fn check_agreement(args: &ReplayArgs, description: &Description) -> Result<(), Failure> {
    let differ = |what: &str, theirs: String, ours: String| {
        let message =
            format!("the target serves {what} {theirs}, not {ours}; leave {what} out to take what it has");
        Err(Failure::usage(message))
    };
    if let Some(model) = args.shape.model.filter(|model| model.name != description.model) {
        return differ("--model", description.model.clone(), model.name.to_owned());
    }
    if let Some(scale) = args.shape.scale.filter(|scale| *scale != description.scale) {
        return differ("--scale", description.scale.to_string(), scale.to_string());
    }
    let apart = description.pieces_per_layer == description.tensors;
    match args.shape.pieces.map(Pieces::from) {
        Some(Pieces::Tensor) if !apart => differ("--pieces", "layer".to_owned(), "tensor".to_owned()),
        Some(Pieces::Layer) if description.pieces_per_layer != 1 => {
            differ("--pieces", "tensor".to_owned(), "layer".to_owned())
        }
        _ => Ok(()),
    }
}

/// Blocks of the cache.
fn cache_blocks(args: &ReplayArgs, block_bytes: u64) -> Result<u32, Failure> {
    let Some(bytes) = args.cache else { return Ok(args.cache_blocks) };
    match u32::try_from(bytes / block_bytes) {
        Ok(0) => {
            let message =
                format!("a cache of {bytes} bytes holds no block of {block_bytes}; raise --cache or --scale");
            Err(Failure::usage(message))
        }
        Ok(blocks) => Ok(blocks),
        Err(_) => {
            Err(Failure::usage(format!("a cache of {bytes} bytes has more blocks than this program counts")))
        }
    }
}

/// The status that the program ends with, and why. If several apply, wrong bytes come first, then why the replay ended,
/// then what failed on the way.
fn verdict(tally: &Tally, end: &End) -> (Exit, String) {
    let failed = || {
        let kinds = FailureKind::ALL.into_iter().filter(|kind| tally.failures(*kind) > 0);
        let kinds: Vec<String> = kinds.map(|kind| format!("{} {kind}", tally.failures(kind))).collect();
        format!(
            "{} of {} blocks failed: {}",
            tally.blocks_failed(),
            tally.blocks_referenced,
            kinds.join(", ")
        )
    };
    match end {
        End::Internal(message) => (Exit::Internal, format!("this is a bug of mori: {message}")),
        _ if tally.failures(FailureKind::WrongBytes) > 0 => (Exit::WrongBytes, failed()),
        End::Interrupted => (Exit::Interrupted, "interrupted before the end of the trace".to_owned()),
        End::BadTrace(error) => (Exit::BadTrace, error.to_string()),
        End::PeerLost { peer, message } => (Exit::PeerLost, format!("the peer {peer} is lost: {message}")),
        End::Unusable { peer, message } => {
            (Exit::NoServer, format!("cannot go on with the peer {peer}: {message}"))
        }
        End::Finished if tally.blocks_failed() > 0 => (Exit::Failed, failed()),
        End::Finished => (Exit::Ok, String::new()),
    }
}
