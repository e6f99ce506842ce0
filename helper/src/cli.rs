//! The command line: grammar, global flags, dispatch, and how a failure is told. What a command does stands in
//! [`crate::commands`].

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};

use clap::error::{ContextKind, ContextValue};
use clap::{CommandFactory, Parser, Subcommand, ValueEnum};
use contract::config::{DEFAULT_PATH, Host};
use shim::Setup;

use crate::commands::{
    audit, broker, cdi, check, completions, configure, contracts, cuda, demo, doctor, install_node, inventory, lease,
    manual, report, source, stats, version,
};
use crate::exit::{Exit, Failure};
use crate::handover;

/// Grants containers exactly the NVIDIA GPUs they asked for.
#[derive(Debug, Parser)]
#[command(name = "quilt-gpu", version, max_term_width = 100)]
pub struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Args)]
struct Global {
    /// The node lies below this folder instead of `/`
    #[arg(long, global = true, value_name = "DIR")]
    host_root: Option<PathBuf>,
    /// The configuration [default: $QUILT_GPU_CONFIG, or /etc/quilt-gpu/config.toml]
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// How to print
    #[arg(long, global = true, value_enum)]
    format: Option<Format>,
    /// Say on stderr what is done
    #[arg(long, short, global = true)]
    verbose: bool,
}

/// How a command prints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people
    Table,
    /// For machines
    Json,
    /// `check`: the changes to the spec as RFC 6902 operations
    Patch,
    /// `cdi generate`, `cdi transform`: the file as YAML
    Yaml,
    /// `inventory`, `stats`: metrics
    Prometheus,
    /// `inventory`: a line for each group of GPUs that are bound to vfio-pci
    VfioInventory,
    /// `inventory`: a line for each MIG instance
    MigInventory,
    /// `audit`: a line of words for each record
    Words,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// What this node has
    Inventory(inventory::Args),
    /// Reservations and contracts
    Contract(contracts::Args),
    /// What the runtime would decide about a container; changes nothing
    Check(check::Args),
    /// Who has which GPU
    Lease(lease::Args),
    /// What was decided, and whether the record is whole
    Audit(audit::Args),
    /// What is wrong between hardware and container, and what mends it; 1 when it stops GPU containers
    Doctor(doctor::Args),
    /// Who uses which GPU, and how much
    Stats(stats::Args),
    /// A page about who had which GPU, refusals and differences, for a browser
    Report(report::Args),
    /// Whether an image's CUDA runs on this node
    Cuda(cuda::Args),
    /// This node as a CDI file, what its CDI files name, and whether files are right
    Cdi(cdi::Args),
    /// Makes the runtime known to an engine, or takes that back
    Configure(configure::Args),
    /// Gives GPUs to containers of users without root, who ask over a socket
    Broker(broker::Args),
    /// Puts the programs on a node from a container and tells its engine, or takes that back
    InstallNode(install_node::Args),
    /// Shows the main job on a made-up node with four GPUs
    Demo(demo::Args),
    /// A completion script for a shell
    Completions(completions::Args),
    /// Writes the manual pages into a folder
    #[command(hide = true)]
    Man(manual::Args),
    /// What the helper runs of itself to ask the driver
    #[command(hide = true)]
    Source(source::Args),
    /// The version of this program
    Version,
}

/// Commands of later versions: whoever calls one is told so; no help, completion or tip names them.
const LATER: [&str; 2] = ["vfio", "mig"];

/// What every command gets.
pub(crate) struct Context<'a> {
    /// The operator's side, with the node's place.
    pub(crate) setup: Setup,
    /// `--format`.
    pub(crate) format: Option<Format>,
    /// Where the answer goes.
    pub(crate) out: &'a mut dyn Write,
    /// Where goes what is worth knowing about it.
    pub(crate) err: &'a mut dyn Write,
}

impl Context<'_> {
    /// Whether to print JSON, for commands that print a table or JSON.
    pub(crate) fn json(&self) -> Result<bool, Failure> {
        match self.format {
            None | Some(Format::Table) => Ok(false),
            Some(Format::Json) => Ok(true),
            Some(other) => Err(not_offered(other, "table and json")),
        }
    }

    /// Prints a document.
    pub(crate) fn document(&mut self, document: &impl serde::Serialize) -> Result<(), Failure> {
        serde_json::to_writer_pretty(&mut self.out, document)?;
        Ok(writeln!(self.out)?)
    }
}

/// A format that this command does not have.
pub(crate) fn not_offered(format: Format, offered: &str) -> Failure {
    let name = format.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
    Failure::Usage(format!("--format {name} is not offered here, only {offered}"))
}

/// The whole program: reads the process's arguments, answers on stdout, complains on stderr.
#[must_use]
pub fn main() -> Exit {
    let args: Vec<OsString> = std::env::args_os().skip(1).collect();
    let (mut out, mut err) = (std::io::stdout().lock(), std::io::stderr());
    if args.first().is_some_and(|first| handover::is_runtime_call(first)) {
        return tell(&handover::become_runtime(&args), false, &mut out, &mut err);
    }
    run(&args, &mut out, &mut err)
}

/// Runs one command line, without the program's name.
pub fn run(args: &[OsString], out: &mut dyn Write, err: &mut dyn Write) -> Exit {
    let words = std::iter::once(OsString::from("quilt-gpu")).chain(args.iter().cloned());
    let cli = match Cli::try_parse_from(words) {
        Ok(cli) => cli,
        Err(error) => {
            if let Some(name) = later_command(&error, args) {
                return tell(&later(name), false, out, err);
            }
            let (to, exit): (&mut dyn Write, Exit) =
                if error.use_stderr() { (err, Exit::Usage) } else { (out, Exit::Done) };
            // Nothing is left to be told when this cannot be written.
            let _ = write!(to, "{}", error.render());
            return exit;
        }
    };
    if cli.global.verbose {
        let _ = tracing_subscriber::fmt().with_writer(std::io::stderr).without_time().with_target(false).try_init();
    }
    let json = cli.global.format == Some(Format::Json)
        || matches!(&cli.command, Command::Contract(args) if args.speaks_json());
    match dispatch(cli, out, err) {
        Ok(exit) => exit,
        Err(failure) => tell(&failure, json, out, err),
    }
}

/// The command of a later version that clap did not know, with the commands before it.
fn later_command(error: &clap::Error, args: &[OsString]) -> Option<&'static str> {
    let Some(ContextValue::String(unknown)) = error.get(ContextKind::InvalidSubcommand) else { return None };
    let ours = Cli::command();
    let (mut command, mut asked) = (&ours, String::new());
    for word in args.iter().take_while(|word| *word != unknown.as_str()) {
        if let Some(inner) = command.find_subcommand(word) {
            command = inner;
            asked.push_str(inner.get_name());
            asked.push(' ');
        }
    }
    asked.push_str(unknown);
    LATER.into_iter().find(|later| *later == asked)
}

fn dispatch(cli: Cli, out: &mut dyn Write, err: &mut dyn Write) -> Result<Exit, Failure> {
    if let Command::Source(args) = &cli.command {
        return source::run(args, out);
    }
    // Whoever asks what is wrong is told so of the configuration, too.
    let setup = setup(&cli.global, matches!(cli.command, Command::Doctor(_)))?;
    tracing::info!(config = %setup.path.display(), root = %setup.config.host.root, "set up");
    let context = Context { setup, format: cli.global.format, out, err };
    match cli.command {
        Command::Inventory(args) => inventory::run(&args, context),
        Command::Contract(args) => contracts::run(&args, context),
        Command::Check(args) => check::run(&args, context),
        Command::Lease(args) => lease::run(&args, context),
        Command::Audit(args) => audit::run(&args, context),
        Command::Doctor(args) => doctor::run(&args, context),
        Command::Stats(args) => stats::run(&args, context),
        Command::Report(args) => report::run(&args, context),
        Command::Cuda(args) => cuda::run(&args, context),
        Command::Cdi(args) => cdi::run(&args, context),
        Command::Configure(args) => configure::run(&args, context),
        Command::Broker(args) => broker::run(&args, context),
        Command::InstallNode(args) => install_node::run(&args, context),
        Command::Demo(args) => demo::run(&args, context),
        Command::Completions(args) => completions::run(&args, context),
        Command::Man(args) => manual::run(&args),
        Command::Source(_) | Command::Version => version::run(context),
    }
}

/// What somebody asked for who knows more than this version.
pub(crate) fn later(name: &str) -> Failure {
    Failure::Usage(format!("`quilt-gpu {name}` comes in a later version; `quilt-gpu --help` lists what this one has"))
}

/// The configuration, and the node where the flags put it. Unlike the runtime, which must start containers without
/// GPUs whatever is wrong, the command line insists on a configuration that counts.
fn setup(global: &Global, lenient: bool) -> Result<Setup, Failure> {
    let mut setup = match &global.config {
        Some(path) => Setup::read(&absolute(path)?),
        None => Setup::from_environment(),
    };
    // Without a configuration the defaults count, unless somebody named a file. The runtime always names one.
    if !setup.path.exists() && setup.path != Path::new(DEFAULT_PATH) {
        return Err(Failure::Usage(format!("there is no configuration {}", setup.path.display())));
    }
    if !lenient && let Some(problem) = setup.problem.take() {
        return Err(Failure::Usage(format!("{}: {}; {}", problem.value, problem.message, problem.help)));
    }
    if let Some(root) = &global.host_root {
        let root = absolute(root)?;
        let text =
            root.to_str().ok_or_else(|| Failure::Usage(format!("--host-root {} is not UTF-8", root.display())))?;
        if !root.is_dir() {
            return Err(Failure::Usage(format!("--host-root {text} is no folder")));
        }
        setup.config.host = Host { root: text.into(), nvml: setup.config.host.nvml, ..Host::default() };
    }
    Ok(setup)
}

fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    std::path::absolute(path)
        .map_err(|cause| Failure::Usage(format!("cannot tell where {} is: {cause}", path.display())))
}

/// One line on stderr for people; with `--format json` also the refusal as a document on stdout.
fn tell(failure: &Failure, json: bool, out: &mut dyn Write, err: &mut dyn Write) -> Exit {
    if failure.exit() != Exit::Done {
        // When these cannot be written there is nobody to tell it to; the exit status remains.
        if let (Failure::Refused(refusal), true) = (failure, json) {
            let _ = writeln!(out, "{}", refusal.to_json());
        }
        let text = failure.to_string();
        let _ = writeln!(err, "quilt-gpu: {text}{}", advice(&text, nix::unistd::geteuid().is_root()));
    }
    failure.exit()
}

/// Nearly all of the node's state is root's alone, so a permission that somebody else lacks is not worth a riddle.
fn advice(failure: &str, root: bool) -> &'static str {
    if !root && failure.to_ascii_lowercase().contains("permission denied") { "; run it as root" } else { "" }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quilt_gpu(args: &[&str]) -> (u8, String, String) {
        let args: Vec<OsString> = args.iter().map(Into::into).collect();
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let exit = run(&args, &mut out, &mut err);
        (exit.code(), String::from_utf8(out).unwrap(), String::from_utf8(err).unwrap())
    }

    #[test]
    fn the_grammar_holds_together() {
        Cli::command().debug_assert();
    }

    #[test]
    fn usage_errors_are_2_and_say_what_would_work() {
        for (args, part) in [
            (&["no-such-command"][..], "no-such-command"),
            (&["invntory"], "'inventory'"),
            (&["vfi"], "unrecognized subcommand 'vfi'"),
            (&["lease", "mig"], "unrecognized subcommand 'mig'"),
            (&["vfio", "--help"], "`quilt-gpu vfio` comes in a later version"),
            (&["cdi", "vfio"], "unrecognized subcommand 'vfio'"),
            (&["cdi", "generate", "--format", "table"], "--format table is not offered here, only json and yaml"),
            (&["cdi", "generate", "--output", "x.txt"], "--output x.txt: a CDI file's name ends with .json or .yaml"),
            (&["cdi", "transform", "root", "a", "/b", "c.json"], "FROM must be an absolute path without .., and is a"),
            (&["cdi", "transform", "root", "/a", "/b/../c", "c.json"], "TO must be an absolute path"),
            (&["cdi", "validate"], "<FILE>"),
            (&["cdi", "validate", "/does/not/exist.json"], "cannot read /does/not/exist.json: "),
            (&["cdi", "validate", "/etc/passwd"], "a CDI file's name ends with .json or .yaml"),
            (&["cdi", "list", "--format", "patch"], "--format patch is not offered here, only table and json"),
            (&["audit", "--all", "--verify-log"], "--all and --verify-log look at everything"),
            (&["audit", "--since", "yesterday"], "is no time"),
            (&["report", "--format", "json"], "a report is HTML"),
            (&["mig", "--all"], "later version"),
            (&["mig"], "later version"),
            (&["inventory", "--config", "/does/not/exist"], "/does/not/exist"),
            (&["inventory", "--host-root", "/does/not/exist"], "/does/not/exist"),
            (
                &["inventory", "refresh", "--format", "prometheus"],
                "--format prometheus is not offered here, only table and json",
            ),
            (&["cuda", "check"], "--image-env"),
            (&["cuda", "check", "/does/not/exist"], "cannot read /does/not/exist"),
            (&["cuda", "check", "--image-env", "/does/not/exist"], "cannot read /does/not/exist"),
            (&["inventory", "diff", "/does/not/exist"], "cannot read /does/not/exist"),
            (&["contract", "prepare", "--request", "-", "--format", "table"], "not offered here, only json"),
            (&["demo", "--format", "json"], "not offered here, only table"),
        ] {
            let (code, out, err) = quilt_gpu(args);
            assert_eq!((code, out.as_str()), (2, ""), "{args:?}: {err}");
            assert!(err.contains(part), "{args:?}: {err}");
        }
    }

    #[test]
    fn whoever_lacks_a_permission_is_told_to_be_root() {
        let denied = format!("cannot lock /x: {}", std::io::Error::from_raw_os_error(nix::libc::EACCES));
        for (text, root, told) in [
            (denied.as_str(), false, "; run it as root"),
            ("cannot write /x: permission denied", false, "; run it as root"),
            (&denied, true, ""),
            ("cannot lock /x: it is busy", false, ""),
        ] {
            assert_eq!(advice(text, root), told, "{text}, root: {root}");
        }
    }

    #[test]
    fn nothing_offers_what_is_not_there_yet() {
        let (_, bare, usage) = quilt_gpu(&[]);
        let (_, _, near) = quilt_gpu(&["vfioo"]);
        let scripts = ["bash", "zsh", "fish"].map(|shell| quilt_gpu(&["completions", shell]).1);
        for text in [bare, usage, near].iter().chain(&scripts) {
            let mut last = LATER.iter().filter_map(|later| later.rsplit(' ').next());
            let offered =
                last.find(|later| text.split(|c: char| !c.is_alphanumeric() && c != '-').any(|word| word == *later));
            assert_eq!(offered, None, "{text}");
        }
        assert!(scripts.iter().all(|script| script.contains("inventory")));
    }

    #[test]
    fn help_goes_to_stdout_and_hides_what_is_not_there_yet() {
        let (code, out, _) = quilt_gpu(&["--help"]);
        assert_eq!(code, 0);
        for (word, shown) in [
            ("inventory", true),
            ("lease", true),
            ("doctor", true),
            ("  vfio ", false),
            ("cuda", true),
            ("mig-inventory", true),
        ] {
            assert_eq!(out.contains(word), shown, "{word}: {out}");
        }
    }
}
