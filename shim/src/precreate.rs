//! `precreate`: an engine that keeps its own runtime shows the spec that it is about to write, and writes what comes back.
//!
//! Steps 3 to 9 are the runtime's; step 10 is the engine's and the hook `createRuntime`'s. Nothing is written but what they
//! write. An engine tells its user nothing of a hook that fails here, but of one that fails later: a refusal is a spec that
//! makes nothing and whose only hook says why.

use std::cell::RefCell;
use std::path::{Path, PathBuf};

use contract::json::{self, Node as Json};
use contract::key::sha256;
use contract::{Code, Refusal};
use guard::System;
use ledger::Original;
use node::process::{self, Process};
use node::{Mode, Node};
use serde_json::json;

use crate::argv::{self, Parsed};
use crate::bundle::Bundle;
use crate::container::Container;
use crate::create;
use crate::decide::decide;
use crate::injected::Judged;
use crate::lowlevel::Seen;
use crate::record;
use crate::setup::Setup;

/// How long an engine may take from here to a container, in seconds.
pub(crate) const PATIENCE: u64 = 60;
/// Most refusals that are told, and most bytes of each: they are words of a command line.
const MOST_TOLD: usize = 8;
const MOST_WORDS: usize = 2000;

/// An engine that writes `config.json` itself and starts the low-level runtime itself.
pub(crate) struct Aside {
    /// What the spec is to become; empty where it stays as it came.
    pub(crate) edited: RefCell<Vec<u8>>,
    /// Digest of a spec as the engine will write it.
    pub(crate) meaning: fn(&[u8]) -> String,
    /// The engine's process.
    pub(crate) engine: Process,
    /// Why nothing can be granted from here.
    pub(crate) refusal: Option<Refusal>,
}

/// What the engine is to write instead of `text`.
///
/// # Errors
/// The text is no spec at all, so that not even a refusal can be made of it.
pub(crate) fn answer(setup: &Setup, text: Vec<u8>) -> Result<Vec<u8>, Vec<Refusal>> {
    let refused = |refusals: &[Refusal]| {
        // Leniently: what is refused may be how it is written.
        let root =
            json::parse_data(&text).ok().and_then(|spec| Some(spec.path(&["root", "path"])?.as_str()?.to_owned()));
        root.map(|root| refusing(setup, &root, refusals))
    };
    match edited(setup, &text) {
        Ok(Some(edited)) => Ok(edited),
        Ok(None) => Ok(text),
        Err(refusals) => refused(&refusals).ok_or(refusals),
    }
}

/// Digest of what a spec says, whatever the order of its members: engines read and write again what they are given. The paths
/// that they mask come later than hooks, in newer ones (Podman 5), and mask more.
pub(crate) fn meaning(bytes: &[u8]) -> String {
    let mut spec = json::parse_oci(bytes).map_or(serde_json::Value::Null, |spec| json::to_value(&spec));
    if let Some(linux) = spec.get_mut("linux").and_then(serde_json::Value::as_object_mut) {
        linux.remove("maskedPaths");
    }
    // Its members are in order.
    sha256(spec.to_string().as_bytes())
}

/// Whether these bytes are what we wrote: as they are, or as an engine wrote them again.
pub(crate) fn wrote(original: &Original, bytes: &[u8]) -> bool {
    original.is_ours(&sha256(bytes)) || original.is_ours(&meaning(bytes))
}

/// The spec with what was granted and changed; nothing when it stays as it came.
fn edited(setup: &Setup, text: &[u8]) -> Result<Option<Vec<u8>>, Vec<Refusal>> {
    let one = |refusal| vec![refusal];
    let spec = json::parse_oci(text).map_err(|error| one(error.into()))?;
    let id = container_id(&spec).unwrap_or_default();
    let path = bundle_of(&spec, id);
    let named = path.to_string_lossy();
    let words = ["create", "--bundle", &named, id];
    let words = words.get(..if id.is_empty() { 3 } else { 4 }).unwrap_or_default();
    let Parsed::Ours(call) = argv::parse(words).map_err(one)? else { return Ok(None) };
    let (container, broken) = match Container::of(&call, setup) {
        Ok(container) => (container, None),
        // The engine has its own runtime, and who asks for no GPU needs none of ours.
        Err(refusal) => (Container::without_low_level(&call, setup), Some(refusal)),
    };
    let bundle =
        Bundle { path: path.clone(), bytes: text.to_vec(), mode: Mode { mode: 0o600, uid: 0, gid: 0 }, loose: None };
    if id.is_empty() || broken.is_some() {
        return ungranted(&container, &bundle, broken).map(|()| None);
    }
    let engine = process::of(std::os::unix::process::parent_id()).unwrap_or_else(process::me);
    let aside = Aside {
        edited: RefCell::default(),
        meaning,
        engine,
        refusal: unwatched(&spec, setup).or_else(|| no_image(&spec)).or_else(|| no_bundle(&path)),
    };
    create::steps(&container, &bundle, Some(&aside), |_| Ok(()))?;
    Ok(Some(aside.edited.into_inner()).filter(|edited| !edited.is_empty()))
}

/// A container that gets no GPU: because what keeps GPUs from all is `broken`, or because it cannot be told from others, and
/// without a control group of its own has no device filter either. The hook `createRuntime` judges what is made of it.
fn ungranted(container: &Container<'_>, bundle: &Bundle, broken: Option<Refusal>) -> Result<(), Vec<Refusal>> {
    let setup = container.setup;
    let system = Node::new(&setup.config.host);
    let low_level = Seen::of(setup, Some(&*container.low_level).filter(|_| broken.is_none()));
    let judged = Judged::new(&bundle.bytes);
    let mut decision = decide(&judged, &bundle.path, &low_level, setup, &system, None, None);
    if decision.refusals.is_empty() && decision.wants_gpu() {
        let message = "the engine names no control group of the container's own, which would keep it to its GPU";
        let help = "leave out what disables control groups (--cgroups)";
        let unnamed = || Refusal::new(Code::Policy, "hook-no-cgroup", message, help).at("/linux/cgroupsPath", "");
        decision.refusals.push(broken.unwrap_or_else(unnamed));
    }
    if decision.refusals.is_empty() {
        return Ok(());
    }
    let mut refusals = decision.refusals;
    refusals.iter_mut().for_each(|refusal| judged.show(&decision.spec, refusal));
    record::refused(container, bundle, None, &refusals);
    Err(refusals)
}

/// Stands for a bundle that is not known.
const NOWHERE: &str = "/";

/// Podman and CRI-O name a container's control group after it: `libpod-<id>`, or `<slice>:libpod:<id>` for systemd. No tenant
/// has a say in that.
fn container_id<'a>(spec: &'a Json<'_>) -> Option<&'a str> {
    let path = spec.path(&["linux", "cgroupsPath"])?.as_str()?;
    let id = path.rsplit(['/', ':', '-']).next()?;
    let is_digit = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    (id.len() == 64 && id.bytes().all(is_digit)).then_some(id)
}

/// Where the engine will write the spec: beside the storage of its images, `overlay-containers/<id>/userdata` beside
/// `overlay/<layer>/merged`. Where that is not so the hook `createRuntime`, which is told, judges alone what depends on it.
fn bundle_of(spec: &Json<'_>, id: &str) -> PathBuf {
    let root = spec.path(&["root", "path"]).and_then(Json::as_str).map(Path::new);
    let beside = |driver: &Path| {
        let name = format!("{}-containers", driver.file_name()?.to_str()?);
        Some(driver.with_file_name(name).join(id).join("userdata"))
    };
    let folder = root.and_then(|root| beside(root.ancestors().nth(2)?));
    folder.filter(|folder| !id.is_empty() && folder.is_dir()).unwrap_or_else(|| NOWHERE.into())
}

/// Why nothing is granted, where nobody can tell which folder is the container's own: files for it would lie in one for all.
fn no_bundle(bundle: &Path) -> Option<Refusal> {
    let message =
        "the container's folder is not beside its storage (--rootfs, transient_store): nothing can be kept for it";
    let help = "start it with the runtime quilt-gpu, or from an image";
    let refusal = || Refusal::new(Code::Policy, "hook-no-bundle", message, help).at("/root/path", "");
    (bundle == Path::new(NOWHERE)).then(refusal)
}

/// Why nothing is granted, where nobody would verify it: the engine's other hooks stand in the spec by now.
fn unwatched(spec: &Json<'_>, setup: &Setup) -> Option<Refusal> {
    let (system, ours) = (Node::new(&setup.config.host), setup.hook().display().to_string());
    let calls_ours = |hook: &Json<'_>, stage: &str| {
        let named = hook.get("args").map(Json::items).unwrap_or_default().get(1).and_then(Json::as_str);
        named == Some(stage) && system.same_file(hook.get("path").and_then(Json::as_str).unwrap_or_default(), &ours)
    };
    let is_watched = ["prestart", "createRuntime"].iter().any(|stage| {
        spec.path(&["hooks", stage]).map(Json::items).unwrap_or_default().iter().any(|hook| calls_ours(hook, stage))
    });
    let message = "the spec has no hook createRuntime of ours: nobody would look at the container before it runs";
    let help = "install all files of share/quilt-gpu/hooks.d in the engine's folder of hooks";
    let refusal = || Refusal::new(Code::Policy, "hook-unwatched", message, help).at("/hooks/createRuntime", "");
    (!is_watched).then(refusal)
}

/// Why nothing is granted, where the image is not to be seen: Podman 5 mounts it elsewhere once more for a user namespace, after
/// its hooks, and nobody can tell where its loader looks for libraries.
fn no_image(spec: &Json<'_>) -> Option<Refusal> {
    let path = spec.path(&["root", "path"]).and_then(Json::as_str).unwrap_or_default();
    let why = match std::fs::read_dir(path).map(|mut entries| entries.next().is_some()) {
        Ok(true) => return None,
        Ok(false) => "is empty so far".to_owned(),
        Err(error) => format!("cannot be read: {error}"),
    };
    let maps = spec.path(&["linux", "uidMappings"]).map(Json::items).unwrap_or_default().first();
    let number = |key| maps.and_then(|map| map.get(key)?.as_i64()).map_or_else(|| "-".to_owned(), |n| n.to_string());
    let map = ["containerID", "hostID", "size"].map(number).join(" ");
    let user = nix::unistd::geteuid();
    let message = format!("the image {why}, for user {user} and a container of the mapping \"{map}\"");
    let help = "start it with the runtime quilt-gpu, or without a user namespace";
    Some(Refusal::new(Code::Policy, "hook-no-image", message, help).at("/root/path", path))
}

/// A spec of which nothing comes: no mount and no device of the tenant's, and a hook that says why.
fn refusing(setup: &Setup, root: &str, refusals: &[Refusal]) -> Vec<u8> {
    let told = refusals.iter().take(MOST_TOLD).map(|refusal| {
        let line = refusal.to_string();
        line[..line.floor_char_boundary(MOST_WORDS)].to_owned()
    });
    let args: Vec<String> = ["quilt-gpu-hook", "refused"].map(str::to_owned).into_iter().chain(told).collect();
    let namespaces: Vec<_> = ["pid", "network", "ipc", "uts", "mount"].map(|kind| json!({"type": kind})).to_vec();
    let hook =
        json!({"path": setup.hook().display().to_string(), "args": args, "env": ["QUILT_GPU_HOOK=1"], "timeout": 30});
    let spec = json!({
        "ociVersion": "1.0.2",
        "process": {"user": {"uid": 0, "gid": 0}, "args": ["/refused-by-quilt-gpu"], "cwd": "/", "noNewPrivileges": true},
        "root": {"path": root, "readonly": true},
        // crun keeps to itself what hooks say; its own standard error is what the engine reads.
        "annotations": {"run.oci.hooks.stderr": "/proc/self/fd/2"},
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "noexec", "mode=755"]},
        ],
        "hooks": {"createRuntime": [hook]},
        "linux": {
            "namespaces": namespaces,
            "resources": {"devices": [{"allow": false, "access": "rwm"}]},
        },
    });
    spec.to_string().into_bytes()
}

#[cfg(test)]
mod tests;
