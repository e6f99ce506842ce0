//! One CRI call at a time, over the daemon's socket. Threads can share a client: every call has a connection of its own.

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use k8s_cri::v1::runtime_service_client::RuntimeServiceClient;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Response, Status};

use crate::error::{Context, Error, Result};
use crate::process::Ran;

/// How long a call may take.
const LIMIT: Duration = Duration::from_secs(60);

/// The generated client of CRI's runtime service.
pub(super) type Service = RuntimeServiceClient<Channel>;

/// A call without an answer.
pub(super) enum Trouble {
    /// It could not be made.
    Harness(Error),
    /// The engine said no: in the words that its user is shown.
    Engine(Ran),
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        Self::Harness(error)
    }
}

/// What comes of calls to the engine.
pub(super) type Told<T> = std::result::Result<T, Trouble>;

/// A refusal as a [`Ran`] that failed.
pub(super) fn as_ran(told: Told<Ran>) -> Result<Ran> {
    match told {
        Ok(ran) | Err(Trouble::Engine(ran)) => Ok(ran),
        Err(Trouble::Harness(error)) => Err(error),
    }
}

/// A refusal as an error.
pub(super) fn as_error<T>(told: Told<T>) -> Result<T> {
    told.map_err(|trouble| match trouble {
        Trouble::Harness(error) => error,
        Trouble::Engine(ran) => Error::new(format!("{}: {}", ran.command, ran.stderr)),
    })
}

/// How a command ended, with the exit code of a process.
pub(super) fn ran(command: String, code: i32, stdout: String, stderr: String) -> Ran {
    Ran { status: ExitStatus::from_raw((code & 0xff) << 8), stdout, stderr, command }
}

#[derive(Debug)]
pub(super) struct Client {
    socket: PathBuf,
}

impl Client {
    pub(super) fn new(socket: PathBuf) -> Self {
        Self { socket }
    }

    /// Makes a call; `what` names it in messages.
    pub(super) fn talk<T>(
        &self,
        what: &str,
        call: impl AsyncFnOnce(&mut Service) -> std::result::Result<Response<T>, Status>,
    ) -> Told<T> {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().build().cannot(|| "make a runtime for CRI".into())?;
        runtime.block_on(async {
            let mut service = RuntimeServiceClient::new(connect(&self.socket).await?);
            match tokio::time::timeout(LIMIT, call(&mut service)).await {
                Ok(Ok(answer)) => Ok(answer.into_inner()),
                Ok(Err(status)) => {
                    let words = format!("{}: {}", status.code(), status.message());
                    Err(Trouble::Engine(ran(what.into(), 1, String::new(), words)))
                }
                Err(_) => Err(Error::new(format!("{what}: no answer within {} s", LIMIT.as_secs())).into()),
            }
        })
    }
}

async fn connect(socket: &Path) -> Result<Channel> {
    let path = socket.to_owned();
    let connector = tower::service_fn(move |_| {
        let path = path.clone();
        async move { UnixStream::connect(path).await.map(TokioIo::new) }
    });
    // The address is never used, but there must be one.
    let endpoint = Endpoint::from_static("http://localhost");
    endpoint.connect_with_connector(connector).await.cannot(|| format!("connect to {}", socket.display()))
}
