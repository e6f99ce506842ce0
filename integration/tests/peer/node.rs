//! The nodes on which NVIDIA's generator was asked: a fixture host for a topology of the mock NVML, with more of the
//! driver's file names than other tests need.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use integration::{DriverFiles, Error, FakeGpu, FakeHost, Held, Instance, Layout, NodeState, Result, run};
use serde_json::Value;

/// Libraries beside those of every fixture: the file's name, and its SONAME; `V` is the driver's version.
const LIBRARIES: [(&str, &str); 15] = [
    ("libGLESv1_CM_nvidia.so.V", "libGLESv1_CM_nvidia.so.1"),
    ("libGLESv2_nvidia.so.V", "libGLESv2_nvidia.so.2"),
    ("libnvidia-api.so.1", "libnvidia-api.so.1"),
    ("libnvidia-egl-gbm.so.1.1.2", "libnvidia-egl-gbm.so.1"),
    ("libnvidia-egl-wayland.so.1.1.19", "libnvidia-egl-wayland.so.1"),
    ("libnvidia-glsi.so.V", "libnvidia-glsi.so.V"),
    ("libnvidia-glvkspirv.so.V", "libnvidia-glvkspirv.so.V"),
    ("libnvidia-gpucomp.so.V", "libnvidia-gpucomp.so.V"),
    ("libnvidia-ngx.so.V", "libnvidia-ngx.so.1"),
    ("libnvidia-pkcs11-openssl3.so.V", "libnvidia-pkcs11-openssl3.so.V"),
    ("libnvidia-rtcore.so.V", "libnvidia-rtcore.so.V"),
    ("libnvidia-tls.so.V", "libnvidia-tls.so.V"),
    ("libnvoptix.so.V", "libnvoptix.so.1"),
    ("nvidia/xorg/libglxserver_nvidia.so.V", "libglxserver_nvidia.so"),
    ("vdpau/libvdpau_nvidia.so.V", "libvdpau_nvidia.so.1"),
];

/// Links that packages or ldconfig make to them.
const LINKS: [(&str, &str); 9] = [
    ("gbm/nvidia-drm_gbm.so", "../libnvidia-allocator.so.1"),
    ("libGLESv1_CM_nvidia.so.1", "libGLESv1_CM_nvidia.so.V"),
    ("libGLESv2_nvidia.so.2", "libGLESv2_nvidia.so.V"),
    ("libnvidia-egl-gbm.so.1", "libnvidia-egl-gbm.so.1.1.2"),
    ("libnvidia-egl-wayland.so.1", "libnvidia-egl-wayland.so.1.1.19"),
    ("libnvidia-ngx.so.1", "libnvidia-ngx.so.V"),
    ("libnvoptix.so.1", "libnvoptix.so.V"),
    ("nvidia/xorg/libglxserver_nvidia.so", "libglxserver_nvidia.so.V"),
    ("vdpau/libvdpau_nvidia.so.1", "libvdpau_nvidia.so.V"),
];

/// What is no library, below the root.
const FILES: [&str; 10] = [
    "etc/OpenCL/vendors/nvidia.icd",
    "usr/lib/firmware/nvidia/V/gsp_ga10x.bin",
    "usr/lib/firmware/nvidia/V/gsp_tu10x.bin",
    "usr/share/X11/xorg.conf.d/nvidia-drm-outputclass.conf",
    "usr/share/egl/egl_external_platform.d/10_nvidia_wayland.json",
    "usr/share/egl/egl_external_platform.d/15_nvidia_gbm.json",
    "usr/share/glvnd/egl_vendor.d/10_nvidia.json",
    "usr/share/nvidia/nvoptix.bin",
    "usr/share/vulkan/icd.d/nvidia_icd.json",
    "usr/share/vulkan/implicit_layer.d/nvidia_layers.json",
];

const PERSISTENCED: &str = "run/nvidia-persistenced/socket";

pub(crate) fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// A topology of the mock NVML.
pub(crate) fn topology(name: &str) -> Result<Value> {
    read(&workspace().join(format!("integration/fake-nvml/topologies/{name}.json")))
}

/// A fixture host below `root` that is what a topology says.
pub(crate) fn lay_out(root: PathBuf, topology: &Value) -> Result<FakeHost> {
    let version = text(&topology["driver_version"]);
    let host = FakeHost::builder(root).driver(&DriverFiles::stand_in(&version)?).build()?;
    let mut state = NodeState { gpus: Vec::new(), instances: BTreeSet::new(), ..host.state(&version) };
    for gpu in topology["gpus"].as_array().into_iter().flatten() {
        let minor = number(&gpu["minor"])?;
        state.gpus.push((FakeGpu { pci: text(&gpu["pci"]), uuid: text(&gpu["uuid"]), minor }, Held::Nvidia));
        for instance in gpu["instances"].as_array().into_iter().flatten().filter(|instance| !instance.is_null()) {
            let (gi, ci) = (number(&instance["gi"])?, number(&instance["ci"])?);
            state.instances.insert(Instance { gpu: minor, gi, ci });
        }
    }
    host.draft(&state)?.apply()?;
    more(&host, &version)?;
    nvml(&host, topology, &version)?;
    ldconfig(&host)?;
    Ok(host)
}

fn more(host: &FakeHost, version: &str) -> Result<()> {
    let named = |name: &str| name.replace('V', version);
    let at = |folder: &str, name: &str| -> Result<PathBuf> {
        let path = host.root.join(folder).join(name);
        let parent = path.parent().unwrap_or(&path);
        fs::create_dir_all(parent)
            .map_err(|cause| Error::new(format!("cannot create {}: {cause}", parent.display())))?;
        Ok(path)
    };
    let folder = Layout::Debian.library_folder();
    // `V` begins no other word in these names but nvidia's own in capitals, which they do not have.
    for (file, soname) in LIBRARIES {
        library(&at(folder, &named(file))?, &named(soname))?;
    }
    for (name, target) in LINKS {
        let path = at(folder, name)?;
        std::os::unix::fs::symlink(named(target), &path)
            .map_err(|cause| Error::new(format!("cannot link {}: {cause}", path.display())))?;
    }
    for name in FILES {
        let path = at("", &named(name))?;
        fs::write(&path, "{}\n").map_err(|cause| Error::new(format!("cannot write {}: {cause}", path.display())))?;
    }
    let socket = at("", PERSISTENCED)?;
    UnixListener::bind(&socket).map_err(|cause| Error::new(format!("cannot bind {}: {cause}", socket.display())))?;
    Ok(())
}

/// The mock, by the name of the library that it stands for, with what it is to tell.
fn nvml(host: &FakeHost, topology: &Value, version: &str) -> Result<()> {
    let folder = host.root.join(Layout::Debian.library_folder());
    let placed = || -> std::io::Result<()> {
        let built = std::env::current_exe()?.with_file_name("libfake_nvml.so");
        fs::copy(built, folder.join(format!("libnvidia-ml.so.{version}")))?;
        fs::write(folder.join(fake_nvml::BESIDE), topology.to_string())
    };
    placed().map_err(|cause| Error::new(format!("cannot put the mock NVML into {}: {cause}", folder.display())))
}

fn library(path: &Path, soname: &str) -> Result<()> {
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-nostdlib", &format!("-Wl,-soname,{soname}"), "-x", "c", "/dev/null", "-o"]).arg(path);
    run(&mut compiler, None, Duration::from_secs(60))?.checked().map(|_| ())
}

fn ldconfig(host: &FakeHost) -> Result<()> {
    let mut ldconfig = Command::new("/sbin/ldconfig");
    run(ldconfig.args(["-X", "-r"]).arg(&host.root), None, Duration::from_secs(60))?.checked().map(|_| ())
}

pub(crate) fn number(value: &Value) -> Result<u64> {
    value.as_u64().ok_or_else(|| Error::new(format!("{value} is no number")))
}

pub(crate) fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

pub(crate) fn read(path: &Path) -> Result<Value> {
    let failed = |cause: &dyn std::fmt::Display| Error::new(format!("cannot read {}: {cause}", path.display()));
    let bytes = fs::read(path).map_err(|cause| failed(&cause))?;
    serde_json::from_slice(&bytes).map_err(|cause| failed(&cause))
}
