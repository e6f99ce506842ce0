//! However a container ends, its GPU is free again.

use std::fs;

use integration::{Error, Result};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::{IMAGE, Yard};

const ONE: [&str; 2] = ["-e", "QUILT_GPU_COUNT=1"];

impl Yard {
    /// A container with the only GPU, running and seen to have it.
    fn held(&self, name: &str) -> Result<()> {
        assert_eq!(self.sleeper(name, &ONE)?.gpus()?.len(), 1, "{name}");
        assert_eq!(self.site.leases()?.len(), 1, "{name}");
        Ok(())
    }

    /// Nothing is leased, and the GPU can be had.
    fn free(&self, after: &str) -> Result<()> {
        self.site.wait_no_leases().map_err(|e| Error::new(format!("after {after}: {e}")))?;
        assert_eq!(self.see(&[&ONE[..], &[IMAGE]].concat())?.gpus()?.len(), 1, "after {after}");
        self.site.wait_no_leases()
    }

    /// The containerd shim of a container of this daemon.
    fn shim(&self, name: &str) -> Result<Pid> {
        let id = self.inspect(name, ".Id")?;
        let processes = fs::read_dir("/proc").map_err(|e| Error::new(e.to_string()))?;
        for process in processes.flatten() {
            let words = fs::read_to_string(process.path().join("cmdline")).unwrap_or_default();
            let pid = process.file_name().to_string_lossy().parse();
            if let (true, true, Ok(pid)) = (words.contains("containerd-shim"), words.contains(&id), pid) {
                return Ok(Pid::from_raw(pid));
            }
        }
        Err(Error::new(format!("no shim of {name}")))
    }
}

#[test]
fn every_end_of_a_container_frees_its_gpu() -> Result<()> {
    let Some(yard) = Yard::new("every_end_of_a_container_frees_its_gpu", 1)? else { return Ok(()) };
    let docker = &yard.docker;

    yard.held("stopped")?;
    docker.client(&["stop", "-t", "0", "stopped"])?.checked()?;
    yard.free("stop")?;

    yard.held("removed")?;
    docker.client(&["rm", "-f", "removed"])?.checked()?;
    yard.free("rm -f")?;

    yard.held("killed")?;
    docker.client(&["kill", "killed"])?.checked()?;
    yard.free("kill")?;

    let failing = yard.run(&[&ONE[..], &[IMAGE, "sh", "-c", "exit 7"]].concat())?;
    assert_eq!(failing.status.code(), Some(7), "{failing:?}");
    yard.free("a failing command")?;

    let missing = yard.run(&[&ONE[..], &[IMAGE, "no-such-program"]].concat())?;
    assert_eq!(missing.status.code(), Some(127), "{missing:?}");
    yard.free("a command that does not exist")?;

    let memory = ["--name", "oom", "-m", "16m", "--memory-swap", "16m"];
    let ran = yard.run(&[&memory[..], &ONE, &[IMAGE, "tail", "/dev/zero"]].concat())?;
    // Nobody but the kernel kills it. (Docker's own word for that, OOMKilled, is lost when the end is told before the cause.)
    assert_eq!(ran.status.code(), Some(137), "{ran:?}");
    yard.free("an OOM kill")
}

#[test]
fn a_killed_containerd_shim_frees_the_gpu() -> Result<()> {
    let Some(yard) = Yard::new("a_killed_containerd_shim_frees_the_gpu", 1)? else { return Ok(()) };
    yard.held("orphan")?;
    kill(yard.shim("orphan")?, Signal::SIGKILL).map_err(|e| Error::new(format!("kill the shim: {e}")))?;
    yard.wait_for("orphan", ".State.Running", "false")?;
    yard.free("kill -9 of the shim")?;

    // And the container itself can be had again, with its GPU.
    yard.docker.client(&["start", "orphan"])?.checked()?;
    assert_eq!(yard.look("orphan")?.gpus()?.len(), 1);
    kill(yard.shim("orphan")?, Signal::SIGKILL).map_err(|e| Error::new(format!("kill the shim: {e}")))?;
    yard.docker.client(&["rm", "-f", "orphan"])?.checked()?;
    yard.free("kill -9 of the shim and rm -f")
}

#[test]
fn a_killed_process_frees_the_gpu() -> Result<()> {
    let Some(yard) = Yard::new("a_killed_process_frees_the_gpu", 1)? else { return Ok(()) };
    yard.held("direct")?;
    let pid = yard.inspect("direct", ".State.Pid")?.parse().map_err(|_| Error::new("no pid"))?;
    kill(Pid::from_raw(pid), Signal::SIGKILL).map_err(|e| Error::new(format!("kill the container: {e}")))?;
    yard.wait_for("direct", ".State.Running", "false")?;
    yard.free("kill -9 of the container's process")
}
