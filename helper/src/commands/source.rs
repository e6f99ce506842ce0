//! `quilt-gpu source`: what a discovering helper runs of itself to ask NVIDIA's user-space code, so that this happens in a
//! process that can be limited and ended. Not for people; the answer is read by `crate::inventory` alone.

use std::ffi::OsString;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use crate::confine::confine;
use crate::exit::{Exit, Failure};
use crate::inventory::told::{Message, NVML, Silence};
use crate::nvml;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    which: Which,
}

#[derive(Debug, clap::Subcommand)]
enum Which {
    /// Loads a library with NVML's interface and prints what it tells
    Nvml {
        /// Absolute path of the library
        library: PathBuf,
        /// The GPUs to ask for, by PCI address
        pci: Vec<String>,
    },
    /// Becomes a program that finds itself in the driver root
    Program {
        /// The driver root
        root: PathBuf,
        /// The program's path in it
        program: PathBuf,
        /// Its arguments
        args: Vec<OsString>,
    },
}

pub(crate) fn run(args: &Args, out: &mut dyn Write) -> Result<Exit, Failure> {
    match &args.which {
        Which::Nvml { library, pci } => {
            let answer = confine("/".as_ref())
                .map_err(|why| Silence::failed(NVML, format!("NVML is not asked unless it can change nothing: {why}")))
                .and_then(|()| nvml::tell(library, pci));
            serde_json::to_writer(&mut *out, &Message::from(answer))?;
            writeln!(out)?;
            Ok(Exit::Done)
        }
        Which::Program { root, program, args } => {
            confine(root).map_err(Failure::Internal)?;
            let failed = |cause| Failure::Internal(format!("cannot enter {}: {cause}", root.display()));
            if root.as_os_str() != "/" {
                nix::unistd::chroot(root).map_err(failed)?;
            }
            nix::unistd::chdir("/").map_err(failed)?;
            let cause = Command::new(program).args(args).exec();
            Err(Failure::Internal(format!("cannot run {} in {}: {cause}", program.display(), root.display())))
        }
    }
}
