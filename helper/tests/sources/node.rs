//! A node below a folder, as the kernel and the driver's packages would show this topology, with the mock as its NVML.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use fake_nvml::Topology;
use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use serde_json::Value;

pub(crate) const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";

/// A node, and an installation that looks at it.
pub(crate) struct Node {
    folder: tempfile::TempDir,
}

impl Node {
    /// `None` when this is not root, who alone can make device nodes.
    pub(crate) fn of(topology: &Topology) -> Option<Self> {
        let node = Self::without_nvml(topology)?;
        let library = format!("{LIBRARIES}/libnvidia-ml.so.{}", topology.driver_version);
        let built = std::env::current_exe().unwrap().with_file_name("libfake_nvml.so");
        node.put(&library, &fs::read(&built).unwrap_or_else(|cause| panic!("{}: {cause}", built.display())));
        node.tell(topology);
        Some(node)
    }

    pub(crate) fn without_nvml(topology: &Topology) -> Option<Self> {
        if !nix::unistd::geteuid().is_root() {
            println!("skipped: device nodes need root");
            return None;
        }
        // The configuration must lie where only root can write.
        let folder = tempfile::Builder::new().prefix("quilt-gpu-test-").tempdir_in("/var/lib").unwrap();
        let node = Self { folder };
        let config = format!(
            "[paths]\nstate_dir = {:?}\nlog_dir = {:?}\n[host]\nroot = {:?}\n[policy]\nverify = \"off\"\n",
            node.folder.path().join("state"),
            node.folder.path().join("log"),
            node.root()
        );
        fs::write(node.config(), config).unwrap();
        node.kernel(topology);
        Some(node)
    }

    pub(crate) fn root(&self) -> PathBuf {
        self.folder.path().join("root")
    }

    pub(crate) fn config(&self) -> PathBuf {
        self.folder.path().join("config.toml")
    }

    pub(crate) fn put(&self, name: &str, content: &[u8]) {
        let path = self.root().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    /// What the mock says from now on.
    pub(crate) fn tell(&self, topology: &Topology) {
        self.put(&format!("{LIBRARIES}/{}", fake_nvml::BESIDE), &serde_json::to_vec(topology).unwrap());
    }

    fn kernel(&self, topology: &Topology) {
        let version = format!("NVRM version: NVIDIA UNIX x86_64 Kernel Module  {}  x\n", topology.driver_version);
        self.put("proc/driver/nvidia/version", version.as_bytes());
        self.put("proc/devices", b"Character devices:\n195 nvidia\n195 nvidiactl\n511 nvidia-uvm\n");
        for gpu in &topology.gpus {
            let device = format!("sys/bus/pci/devices/{}", gpu.pci);
            for (name, value) in [("vendor", "0x10de\n"), ("device", "0x20b0\n"), ("class", "0x030200\n")] {
                self.put(&format!("{device}/{name}"), value.as_bytes());
            }
            symlink("../../drivers/nvidia", self.root().join(&device).join("driver")).unwrap();
            let text = format!("Model: \t\t {}\nGPU UUID: \t {}\nDevice Minor: \t {}\n", gpu.name, gpu.uuid, gpu.minor);
            self.put(&format!("proc/driver/nvidia/gpus/{}/information", gpu.pci), text.as_bytes());
            self.device(&format!("nvidia{}", gpu.minor), 195, gpu.minor.into());
        }
        for (name, major, minor) in [("nvidiactl", 195, 255), ("nvidia-uvm", 511, 0), ("nvidia-uvm-tools", 511, 1)] {
            self.device(name, major, minor);
        }
    }

    fn device(&self, name: &str, major: u64, minor: u64) {
        fs::create_dir_all(self.root().join("dev")).unwrap();
        mknod(
            &self.root().join("dev").join(name),
            SFlag::S_IFCHR,
            Mode::from_bits_truncate(0o666),
            makedev(major, minor),
        )
        .unwrap();
    }

    /// `quilt-gpu` with these words: its status, and what it prints.
    pub(crate) fn quilt_gpu(&self, words: &[&str]) -> (i32, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_quilt-gpu"));
        // What an engine hands down must not reach the driver's code.
        command.env(fake_nvml::VARIABLE, "/nonexistent").env("LD_LIBRARY_PATH", ":");
        let out = command.arg("--config").arg(self.config()).args(words).output().unwrap();
        (out.status.code().unwrap_or(-1), String::from_utf8_lossy(&[out.stdout, out.stderr].concat()).into_owned())
    }

    /// The inventory of a refresh.
    pub(crate) fn refreshed(&self) -> Value {
        let (status, text) = self.quilt_gpu(&["--format", "json", "inventory", "refresh"]);
        assert_eq!(status, 0, "{text}");
        let mut document: Value = serde_json::from_str(&text).unwrap_or_else(|cause| panic!("{cause}: {text}"));
        document["inventory"].take()
    }
}

/// The findings that the sources are about.
pub(crate) fn findings(inventory: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let all = inventory["findings"].as_array().unwrap().iter();
    all.map(|finding| (text(&finding["code"]), text(&finding["message"])))
        .filter(|(code, _)| code.starts_with("source-") || code == "driver-version-mismatch")
        .collect()
}

/// The states of the GPUs; the empty word is usable.
pub(crate) fn states(inventory: &Value) -> Vec<&str> {
    let gpus = inventory["gpus"].as_array().unwrap().iter();
    gpus.map(|gpu| gpu["unavailable"]["state"].as_str().unwrap_or_default()).collect()
}

/// One of the mock's own topologies.
pub(crate) fn topology(name: &str) -> Topology {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../integration/fake-nvml/topologies");
    serde_json::from_slice(&fs::read(folder.join(format!("{name}.json"))).unwrap()).unwrap()
}
