//! `broker`: the socket, by systemd or by hand; what is asked over it is [`crate::broker`]'s.

use std::fs::Permissions;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use crate::broker::serve;
use crate::cli::Context;
use crate::exit::{Exit, Failure};

/// Gives GPUs to containers of users without root: no boundary, but the node's record knows of them.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Listen there, by hand; without it the socket is systemd's (quilt-gpu-broker.socket)
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
}

pub(crate) fn run(args: &Args, context: Context<'_>) -> Result<Exit, Failure> {
    if !node::process::is_nodes_root() {
        return Err(Failure::Usage("the broker keeps the node's ledger: run it as root on the node".to_owned()));
    }
    let listener = match &args.socket {
        Some(path) => listen(path)?,
        None => node::handed_socket().map(UnixListener::from).ok_or_else(|| {
            let socket = &context.setup.config.broker.socket;
            let help = "start quilt-gpu-broker.socket, or name a socket";
            Failure::Usage(format!("systemd gave no socket; {help}: quilt-gpu broker --socket {socket}"))
        })?,
    };
    // For whoever waits for it; systemd's log has it too.
    let allowed = &context.setup.config.broker.allow;
    let whom = if allowed.is_empty() { "nobody ([broker] allow is empty)".to_owned() } else { allowed.join(", ") };
    writeln!(context.err, "quilt-gpu: the broker gives GPUs to {whom}")?;
    Err(Failure::internal(serve(&listener, &context.setup)))
}

/// A socket that every user may ask: who gets anything is the configuration's to say.
fn listen(path: &Path) -> Result<UnixListener, Failure> {
    let failed = |what: &str, e: std::io::Error| Failure::Usage(format!("cannot {what} {}: {e}", path.display()));
    // One that nobody listens at is left from before.
    if path.symlink_metadata().is_ok_and(|meta| meta.file_type().is_socket()) && UnixStream::connect(path).is_err() {
        std::fs::remove_file(path).map_err(|e| failed("remove", e))?;
    }
    let listener = UnixListener::bind(path).map_err(|e| failed("listen at", e))?;
    std::fs::set_permissions(path, Permissions::from_mode(0o666)).map_err(|e| failed("open to all users", e))?;
    Ok(listener)
}
