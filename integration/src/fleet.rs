//! Many containers of one spec that are made and removed at the same instant, each by a process of its own: what tests
//! about capacity need. It checks what must hold whoever wins; how many may win is the test's to say.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::PipeReader;
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use crate::bundle::{Bundle, Spec};
use crate::error::{Context, Error, Result};
use crate::process::{run, text};
use crate::rootfs::Rootfs;
use crate::runc::Runc;

/// How long all of them together may take.
const LIMIT: Duration = Duration::from_secs(120);

/// Waits until its standard input ends, then becomes the rest of its words.
const GATE: &str = r#"read _; exec "$0" "$@""#;

/// The containers, which share one root file system. Those that exist are deleted when this is dropped.
#[derive(Debug)]
pub struct Fleet {
    runtime: Runc,
    members: Vec<Member>,
}

#[derive(Debug)]
struct Member {
    id: String,
    bundle: Bundle,
    original: Vec<u8>,
}

impl Fleet {
    /// So many bundles of this spec below `folder`, named `<name>-<n>`; nothing is created yet.
    ///
    /// # Errors
    /// A bundle cannot be made.
    pub fn new(runtime: Runc, folder: &Path, name: &str, count: usize, spec: &Spec, rootfs: &Rootfs) -> Result<Self> {
        let mut members = Vec::new();
        for n in 0..count {
            let id = format!("{name}-{n}");
            // runc gives equal ids of different state roots one cgroup, and another fleet may run beside this one.
            let cgroup = format!("/quilt-gpu-fleet{}-{id}", folder.display().to_string().replace('/', "-"));
            let bundle = Bundle::sharing(folder.join(&id), &spec.clone().cgroup(&cgroup), rootfs)?;
            let original = read(&bundle.config())?;
            members.push(Member { id, bundle, original });
        }
        Ok(Self { runtime, members })
    }

    /// Creates all at once and gives the winners: minor of the GPU, and which container has it.
    ///
    /// # Errors
    /// A call that neither succeeds nor says `CAPACITY_FULL`; a winner without exactly one GPU; a GPU given twice; a
    /// loser with a changed `config.json` or with a container.
    pub fn create(&self) -> Result<BTreeMap<u64, usize>> {
        let everybody: Vec<usize> = (0..self.members.len()).collect();
        let mut winners = BTreeMap::new();
        for (n, status) in self.at_once(&everybody, &["create"])? {
            let member = &self.members[n];
            if !status.success() {
                self.lost(member, status)?;
                continue;
            }
            let gpus = member.bundle.gpus()?;
            let [minor] = gpus.as_slice() else {
                return Err(Error::new(format!("{} was created with the GPUs {gpus:?}", member.id)));
            };
            if let Some(other) = winners.insert(*minor, n) {
                return Err(Error::new(format!(
                    "nvidia{minor} was given to {} and {}",
                    self.members[other].id, member.id
                )));
            }
        }
        Ok(winners)
    }

    fn lost(&self, member: &Member, status: ExitStatus) -> Result<()> {
        let said = member.said()?;
        if status.code() != Some(1) || !said.contains("CAPACITY_FULL") {
            return Err(Error::new(format!("create of {}: {status}: {said}", member.id)));
        }
        if self.runtime.root().join(&member.id).exists() {
            return Err(Error::new(format!("{} was refused and exists", member.id)));
        }
        member.unchanged()
    }

    /// Starts these containers and waits for their end; what each wrote.
    ///
    /// # Errors
    /// One cannot be started, or does not end.
    pub fn outputs(&self, which: &[usize]) -> Result<Vec<String>> {
        self.checked(which, &["start"])?;
        let mut outputs = Vec::new();
        for member in which.iter().map(|n| &self.members[*n]) {
            self.runtime.wait_stopped(&member.id)?;
            outputs.push(String::from_utf8_lossy(&read(&member.bundle.path.join("stdout"))?).into_owned());
        }
        Ok(outputs)
    }

    /// Deletes these containers at once.
    ///
    /// # Errors
    /// A call fails, a container is still there, or its `config.json` is not what it was at the beginning.
    pub fn delete(&self, which: &[usize]) -> Result<()> {
        self.checked(which, &["delete", "--force"])?;
        for member in which.iter().map(|n| &self.members[*n]) {
            if self.runtime.root().join(&member.id).exists() {
                return Err(Error::new(format!("{} is still there after delete", member.id)));
            }
            member.unchanged()?;
        }
        Ok(())
    }

    fn checked(&self, which: &[usize], verb: &[&str]) -> Result<()> {
        for (n, status) in self.at_once(which, verb)? {
            if !status.success() {
                let member = &self.members[n];
                return Err(Error::new(format!("{} of {}: {status}: {}", verb[0], member.id, member.said()?)));
            }
        }
        Ok(())
    }

    /// Has one process each stand at the gate, opens it, and waits for all.
    fn at_once(&self, which: &[usize], verb: &[&str]) -> Result<Vec<(usize, ExitStatus)>> {
        let (gate, holder) = std::io::pipe().cannot(|| "make a pipe".into())?;
        let mut running = Vec::new();
        for n in which {
            running.push((*n, self.at_the_gate(&self.members[*n], verb, &gate)?));
        }
        drop((gate, holder));
        let deadline = Instant::now() + LIMIT;
        running.into_iter().map(|(n, child)| Ok((n, wait(child, deadline)?))).collect()
    }

    fn at_the_gate(&self, member: &Member, verb: &[&str], gate: &PipeReader) -> Result<Child> {
        let plain = self.runtime.command(&member.id);
        let mut command = Command::new("sh");
        command.arg("-c").arg(GATE).arg(plain.get_program()).args(plain.get_args()).args(verb);
        if verb == ["create"] {
            command.args(["--bundle", text(&member.bundle.path)?]);
            command.args(["--pid-file", text(&member.bundle.path.join("init.pid"))?]);
        }
        command.arg(&member.id);
        command.envs(plain.get_envs().filter_map(|(key, value)| Some((key, value?))));
        // The container keeps what `create` was given: its output is its own, whatever later calls say.
        let names = if verb == ["create"] { ["stdout", "stderr"] } else { ["call.stdout", "stderr"] };
        let [out, err] = names.map(|name| create(&member.bundle.path.join(name)));
        let gate = gate.try_clone().cannot(|| "duplicate a pipe".into())?;
        command.stdin(gate).stdout(out?).stderr(err?);
        command.spawn().cannot(|| format!("start {} of {}", verb[0], member.id))
    }
}

impl Member {
    fn said(&self) -> Result<String> {
        Ok(String::from_utf8_lossy(&read(&self.bundle.path.join("stderr"))?).into_owned())
    }

    fn unchanged(&self) -> Result<()> {
        if read(&self.bundle.config())? == self.original {
            return Ok(());
        }
        Err(Error::new(format!("the config.json of {} is not what it was at the beginning", self.id)))
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        for member in &self.members {
            if self.runtime.root().join(&member.id).exists() {
                let mut delete = self.runtime.command(&member.id);
                let _ = run(delete.args(["delete", "--force", &member.id]), None, LIMIT);
            }
        }
    }
}

fn wait(mut child: Child, deadline: Instant) -> Result<ExitStatus> {
    loop {
        if let Some(status) = child.try_wait().cannot(|| "wait for a process".into())? {
            return Ok(status);
        }
        if Instant::now() > deadline {
            let _ = child.kill();
            return Err(Error::new(format!("no end within {} s", LIMIT.as_secs())));
        }
        std::thread::sleep(Duration::from_micros(300));
    }
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).cannot(|| format!("read {}", path.display()))
}

fn create(path: &Path) -> Result<File> {
    File::create(path).cannot(|| format!("create {}", path.display()))
}
