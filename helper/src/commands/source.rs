//! `quilt-gpu source`: what a discovering helper runs of itself to ask NVIDIA's user-space code, so that this happens in a
//! process that can be limited and ended. Not for people; the answer is read by `crate::inventory` alone.

use std::ffi::{CString, OsStr, OsString};
use std::fs::File;
use std::io::Write;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use crate::confine::confine;
use crate::exit::{Exit, Failure};
use crate::inventory::told::{Message, NVML, Silence};
use crate::judged::open_as;
use crate::{nvml, stats};

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
        /// What it was when it was judged
        id: String,
        /// Also asks what the GPUs do now
        #[arg(long)]
        live: bool,
        /// Who uses the GPUs, instead of what they are
        #[arg(long)]
        usage: bool,
        /// The GPUs to ask for, by PCI address
        pci: Vec<String>,
    },
    /// Becomes a program that finds itself in the driver root
    Program {
        /// The driver root
        root: PathBuf,
        /// The program's path in it
        program: PathBuf,
        /// What it was when it was judged
        id: String,
        /// NVML's library in the root, for it to load before it looks for one
        library: PathBuf,
        /// What that was when it was judged
        library_id: String,
        /// Its arguments
        args: Vec<OsString>,
    },
}

pub(crate) fn run(args: &Args, out: &mut dyn Write) -> Result<Exit, Failure> {
    match &args.which {
        Which::Nvml { library, id, live, usage, pci } => {
            let open = confine("/".as_ref())
                .map_err(|why| format!("NVML is not asked unless it can change nothing: {why}"))
                .and_then(|()| open_as(library, id))
                .map_err(|why| Silence::failed(NVML, why));
            if *usage {
                let answer = open.and_then(|open| nvml::usage(library, &open, pci));
                serde_json::to_writer(&mut *out, &stats::told::Message::from(answer))?;
            } else {
                let answer = open.and_then(|open| nvml::tell(library, &open, pci, *live));
                serde_json::to_writer(&mut *out, &Message::from(answer))?;
            }
            writeln!(out)?;
            Ok(Exit::Done)
        }
        Which::Program { root, program, id, library, library_id, args } => {
            confine(root).map_err(Failure::Internal)?;
            let failed = |cause| Failure::Internal(format!("cannot enter {}: {cause}", root.display()));
            if root.as_os_str() != "/" {
                nix::unistd::chroot(root).map_err(failed)?;
            }
            nix::unistd::chdir("/").map_err(failed)?;
            open_as(library, library_id).map_err(Failure::Internal)?;
            let file = open_as(program, id).map_err(Failure::Internal)?;
            let cause = become_it(&file, program, library, args);
            Err(Failure::Internal(format!("cannot run {} in {}: {cause}", program.display(), root.display())))
        }
    }
}

/// Becomes the open program; returns only when that fails. What lies in the library's folders was judged with it.
fn become_it(file: &File, program: &Path, library: &Path, args: &[OsString]) -> std::io::Error {
    let mut preload = OsString::from("LD_PRELOAD=");
    preload.push(library);
    let own = std::env::vars_os().map(|(key, value)| [key, value].join(OsStr::new("=")));
    let words = std::iter::once(program.into()).chain(args.iter().cloned());
    let become_it = || -> std::io::Result<std::convert::Infallible> {
        Ok(nix::unistd::fexecve(file, &strings(words)?, &strings(own.chain([preload]))?)?)
    };
    match become_it() {
        Err(cause) => cause,
        Ok(never) => match never {},
    }
}

fn strings(words: impl Iterator<Item = OsString>) -> std::io::Result<Vec<CString>> {
    words.map(|word| Ok(CString::new(word.into_vec())?)).collect()
}
