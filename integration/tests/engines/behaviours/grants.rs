//! Containers that get what they ask for, and no more.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use integration::engine::{Ask, Source, Through};
use integration::{Error, Result, Seen, must, run};
use serde_json::Value;

use crate::rows::{GPUS, Yard, exactly, gpus};

/// Nothing asked, nothing got; what the image says of NVIDIA is void, and stays absent where it was absent.
pub(super) fn none(yard: &mut Yard) -> Result<()> {
    let seen = yard.see(&yard.probing("none"))?;
    exactly(&seen, 0)?;
    must(seen.env("NVIDIA_VISIBLE_DEVICES").is_none(), "a variable appeared")?;
    must(seen.env("FROM_IMAGE") == Some("yes"), "the image's own variable is gone")?;
    let baked = yard.see(&Ask { image: "baked:1".into(), ..yard.probing("baked") })?;
    exactly(&baked, 0)?;
    let visible = baked.env("NVIDIA_VISIBLE_DEVICES");
    must(visible == Some("void"), format_args!("NVIDIA_VISIBLE_DEVICES of the image is {visible:?}"))
}

pub(super) fn one_by_environment(yard: &mut Yard) -> Result<()> {
    one(yard, Source::Environment)
}

pub(super) fn one_by_annotation(yard: &mut Yard) -> Result<()> {
    one(yard, Source::Annotation)
}

pub(super) fn one_by_pod_annotation(yard: &mut Yard) -> Result<()> {
    one(yard, Source::PodAnnotation)
}

fn one(yard: &mut Yard, source: Source) -> Result<()> {
    granted_one(yard, &yard.probing("one").asking(source, "count", "1"))
}

/// A whole grant: nodes, variables, libraries, also for an image that says it sees all.
fn granted_one(yard: &mut Yard, ask: &Ask) -> Result<()> {
    let seen = yard.see(ask)?;
    let granted = exactly(&seen, 1)?;
    let minor = granted.first().copied().unwrap_or_default();
    let gpu = yard.site.host.by_minor(minor).ok_or_else(|| Error::new(format!("no GPU has the minor {minor}")))?;
    let visible = seen.env("NVIDIA_VISIBLE_DEVICES");
    must(visible == Some(&*gpu.uuid), format_args!("NVIDIA_VISIBLE_DEVICES is {visible:?}, not {}", gpu.uuid))?;
    must(seen.env("CUDA_VISIBLE_DEVICES") == Some("0"), "CUDA_VISIBLE_DEVICES is not 0")?;
    for name in ["libcuda.so.1", "libnvidia-ml.so.1"] {
        seen.library(name)?;
    }
    Ok(())
}

/// A control plane reserves by JSON, and the container comes with the token.
pub(super) fn one_by_token(yard: &mut Yard) -> Result<()> {
    let file = yard.site.join("request.json");
    let request =
        r#"{"name":"demo","image":"deb","gpu_count":1,"gpu_ids":["nvidia2"],"command":["true"],"strict":false}"#;
    std::fs::write(&file, request).map_err(|e| Error::new(format!("write {}: {e}", file.display())))?;
    let mut prepare = yard.site.quilt.command();
    prepare.args(["contract", "prepare", "--request"]).arg(&file);
    let answer = run(&mut prepare, None, Duration::from_secs(30))?.checked()?;
    let answer: Value =
        serde_json::from_str(&answer.stdout).map_err(|e| Error::new(format!("{e}: {}", answer.stdout)))?;
    let token = answer["token"].as_str().ok_or_else(|| Error::new(format!("no token in {answer}")))?;
    let mut ask = yard.probing("reserved");
    match yard.usual()? {
        Source::Environment => ask.env.push(("QUILT_GPU_CONTRACT".into(), token.into())),
        _ => ask.node_annotations.push(("grant.quilt.gpu/contract".into(), token.into())),
    }
    let seen = yard.see(&ask)?;
    let granted = exactly(&seen, 1)?;
    must(granted == BTreeSet::from([2]), format_args!("nvidia2 was reserved, it has {granted:?}"))?;
    // One use.
    yard.site.wait_no_leases()?;
    yard.refused(&ask, &["CONTRACT_UNTRUSTED"])
}

pub(super) fn all(yard: &mut Yard) -> Result<()> {
    let seen = yard.see(&yard.asking(yard.probing("all"), "count", &GPUS.to_string())?)?;
    exactly(&seen, GPUS)?;
    let cuda = seen.env("CUDA_VISIBLE_DEVICES");
    must(cuda == Some("0,1,2,3"), format_args!("CUDA_VISIBLE_DEVICES is {cuda:?}"))
}

pub(super) fn pinned(yard: &mut Yard) -> Result<()> {
    let by_node = gpus(&yard.see(&yard.asking(yard.probing("pinned"), "ids", "nvidia3")?)?)?;
    must(by_node == BTreeSet::from([3]), format_args!("nvidia3 was asked for, it has {by_node:?}"))?;
    let uuid = yard.site.host.by_minor(1).map(|gpu| gpu.uuid.clone()).unwrap_or_default();
    let by_uuid = gpus(&yard.see(&yard.asking(yard.probing("by-uuid"), "ids", &uuid)?)?)?;
    must(by_uuid == BTreeSet::from([1]), format_args!("{uuid} was asked for, it has {by_uuid:?}"))?;
    yard.refused(&yard.asking(yard.probing("unknown"), "ids", "nvidia9")?, &["UNKNOWN_GPU", "nvidia9"])
}

/// The whole host is seen, and of its GPUs' nodes only the granted one opens.
pub(super) fn host_root(yard: &mut Yard) -> Result<()> {
    let dev = format!("/host{}", yard.site.host.root.join("dev").display());
    let look = |name: &str, through| Ask {
        binds: vec![("/".into(), "/host".into())],
        through,
        ..Ask::new(name, "deb:1", ["quilt-probe", "devices", &dev])
    };
    let opened = |ran: &str| -> BTreeSet<String> {
        let lines = ran.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let open = lines.filter(|line| line["open"] != "EPERM" && line["open"] != "EACCES");
        open.filter_map(|line| Some(Path::new(line["path"].as_str()?).file_name()?.to_string_lossy().into_owned()))
            .collect()
    };
    let seen = yard.engine.run(&look("root", Through::Quilt))?.checked()?;
    must(seen.stdout.lines().count() > GPUS, format_args!("the host's nodes are not seen: {}", seen.stdout))?;
    let open = opened(&seen.stdout);
    must(open.is_empty(), format_args!("without a request these open: {open:?}"))?;
    let ask = yard.asking(look("root-one", Through::Quilt), "ids", "nvidia1")?;
    let open = opened(&yard.engine.run(&ask)?.checked()?.stdout);
    let granted = ["nvidia1", "nvidia-uvm", "nvidia-uvm-tools", "nvidiactl"].map(str::to_owned);
    must(open == BTreeSet::from(granted), format_args!("with nvidia1 granted these open: {open:?}"))
}

/// A container with ids of its own cannot make nodes; it gets them bound.
pub(super) fn user_namespace(yard: &mut Yard) -> Result<()> {
    let apart = |ask: Ask| Ask { user_namespace: true, ..ask };
    let map = yard.engine.run(&apart(Ask::new("map", "deb:1", ["cat", "/proc/self/uid_map"])))?.checked()?.stdout;
    must(map.split_whitespace().nth(1) != Some("0"), format_args!("no user namespace of its own: {map}"))?;
    let seen = yard.see(&apart(yard.probing("apart")))?;
    must(seen.gpus_by_node()?.is_empty(), "a GPU without a request")?;
    let ask = yard.asking(apart(yard.probing("apart-one")), "ids", "nvidia2")?;
    let seen = Seen::of(&yard.engine.run(&ask)?.checked()?.stdout)?;
    let granted = seen.gpus_by_node()?;
    must(granted == BTreeSet::from([2]), format_args!("nvidia2 was asked for, it has {granted:?}"))?;
    seen.library("libcuda.so.1")?;
    let dev = format!("/host{}", yard.site.host.root.join("dev").display());
    let mut ask = yard.asking(apart(yard.probing("apart-root")), "ids", "nvidia2")?;
    ask.args = ["quilt-probe", "devices", &dev].map(str::to_owned).to_vec();
    ask.binds = vec![("/".into(), "/host".into())];
    let other = yard.engine.run(&ask)?.checked()?;
    must(other.stdout.contains("/nvidia1\""), format_args!("the host's nodes are not seen: {}", other.stdout))?;
    let opens =
        |line: &str| line.contains(r#""open":"ENXIO""#) && !line.contains("nvidia2\"") && line.contains("/nvidia1\"");
    must(!other.stdout.lines().any(opens), format_args!("another's GPU opens: {}", other.stdout))?;
    Ok(())
}
