//! The harness's own engines: each comes up on each kind of control groups, does what the interface says, and leaves
//! nothing. No quilt-gpu here.

mod life;
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

/// An engine of this name and release.
type Up = Box<dyn Engine>;

/// A place for an engine: a low-level runtime, and a wrapper that lets no container begin.
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
        let plain = match low_level {
            "runc-nsr" => runc_without_sys_resource(scratch.path())?,
            name => match Kit::default().low_level(name) {
                Ok(path) => path,
                Err(reason) => {
                    say(format_args!("SKIPPED {test}: {reason}"));
                    return Ok(None);
                }
            },
        };
        let quilt = failing(&scratch, &plain)?;
        let shown = vec![scratch.path().to_owned()];
        Ok(Some(Self { ground: Ground { quilt, plain, groups, shown, remapped: false }, scratch }))
    }

    /// The engine `docker-20`, or `None` where it is missing, which has been said.
    fn engine(&self, test: &str, name: &str) -> Result<Option<(Up, PathBuf)>> {
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
                (Box::new(engine) as Up, folder)
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

/// Below any runtime: fails as runc does, in its log and on standard error.
fn failing(scratch: &Scratch, plain: &Path) -> Result<PathBuf> {
    let path = scratch.join("failing");
    let text = format!(
        r#"#!/bin/sh
log= last= verb=
for word; do
  [ "$last" != --log ] || log=$word
  [ "$word" != create ] || verb=create
  last=$word
done
[ "$verb" = create ] || exec {} "$@"
[ -z "$log" ] || printf '{{"level":"error","msg":"{FAILURE}","time":"2024-01-01T00:00:00Z"}}\n' >>"$log"
echo '{FAILURE}' >&2
exit 1
"#,
        plain.display()
    );
    write(&path, &text)?;
    let executable = fs::Permissions::from_mode(0o755);
    fs::set_permissions(&path, executable).map_err(|e| Error::new(format!("{}: {e}", path.display())))?;
    Ok(path)
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).map_err(|e| Error::new(format!("{}: {e}", path.display())))
}
