//! The harness's own engines: each comes up on each kind of control groups, does what the interface says, and leaves
//! nothing. No quilt-gpu here.

mod life;
mod others;
mod traces;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use integration::engine::{Cri, Ctr, Docker, Engine, Ground, Kit, Podman};
use integration::{Error, Groups, Result, Scratch, root_for, runc_without_sys_resource, say};

/// The image of all tests.
const IMAGE: &str = "bb:1";

/// What a container through `quilt-gpu` fails with here.
const FAILURE: &str = "out of the ordinary";

/// A place for an engine: a low-level runtime that is watched, and one that lets no container begin.
struct Place {
    ground: Ground,
    scratch: Scratch,
}

impl Place {
    /// `None` where something is missing, which has been said.
    fn new(test: &str, low_level: &str, groups: Groups) -> Result<Option<Self>> {
        if !root_for(test) {
            return Ok(None);
        }
        let scratch = Scratch::new()?;
        let below = match low_level {
            "runc-nsr" => runc_without_sys_resource(scratch.path())?,
            name => match Kit::default().low_level(name) {
                Ok(path) => path,
                Err(reason) => {
                    say(format_args!("SKIPPED {test}: {reason}"));
                    return Ok(None);
                }
            },
        };
        let plain = wrapper(&scratch, "noting", NOTING, &below)?;
        let quilt = wrapper(&scratch, "failing", FAILING, &below)?;
        let shown = vec![scratch.path().to_owned(), below];
        Ok(Some(Self { ground: Ground { quilt, plain, groups, shown, remapped: false, hooks: None }, scratch }))
    }

    /// How often the runtime was called with this word since it was asked last.
    fn calls(&self, word: &str) -> Result<usize> {
        let path = self.scratch.join("noting.calls");
        let calls = fs::read_to_string(&path).map_err(|e| Error::new(format!("{}: {e}", path.display())))?;
        write(&path, "")?;
        Ok(calls.split_whitespace().filter(|called| *called == word).count())
    }

    /// The engine `docker-20`, or `None` where it is missing, which has been said.
    fn engine(&self, test: &str, name: &str) -> Result<Option<(Box<dyn Engine>, PathBuf)>> {
        let kit = Kit::default();
        let (kind, release) = name.split_once('-').unwrap_or((name, ""));
        let found = match kind {
            "docker" => kit.docker(release).err(),
            "podman" => kit.podman(release).err(),
            _ => kit.containerd(release).err(),
        };
        if let Some(reason) = found {
            say(format_args!("SKIPPED {test}: {reason}"));
            return Ok(None);
        }
        macro_rules! up {
            ($engine:ident) => {{
                let engine = $engine::on(release, &self.ground)?;
                let folder = engine.folder().to_owned();
                (Box::new(engine) as Box<dyn Engine>, folder)
            }};
        }
        Ok(Some(match kind {
            "docker" => up!(Docker),
            "podman" => up!(Podman),
            "ctr" => up!(Ctr),
            _ => up!(Cri),
        }))
    }
}

/// Notes how it is called.
const NOTING: &str = r#"echo "$@" >>"$0.calls""#;

/// Lets no container begin: fails as runc does, in its log and on standard error.
const FAILING: &str = r#"
log= last= verb=
for word; do
  [ "$last" != --log ] || log=$word
  [ "$word" != create ] || verb=create
  last=$word
done
if [ "$verb" = create ]; then
  [ -z "$log" ] || printf '{"level":"error","msg":"out of the ordinary","time":"2024-01-01T00:00:00Z"}\n' >>"$log"
  echo 'out of the ordinary' >&2
  exit 1
fi
"#;

fn wrapper(scratch: &Scratch, name: &str, before: &str, below: &Path) -> Result<PathBuf> {
    let path = scratch.join(name);
    write(&path, &format!("#!/bin/sh\n{before}\nexec {} \"$@\"\n", below.display()))?;
    let executable = fs::Permissions::from_mode(0o755);
    fs::set_permissions(&path, executable).map_err(|e| Error::new(format!("{}: {e}", path.display())))?;
    Ok(path)
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).map_err(|e| Error::new(format!("{}: {e}", path.display())))
}
