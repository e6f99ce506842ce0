//! Containers that must not come into being, and what their users are told by the engine itself.

use std::collections::BTreeSet;

use integration::engine::{Ask, Through};
use integration::{Result, Seen, must};

use crate::rows::{GPUS, Yard, exactly};

/// All GPUs are held: the next is told so, in numbers and without anybody's name; others start.
pub(super) fn full_node(yard: &mut Yard) -> Result<()> {
    let mut all = BTreeSet::new();
    for n in 0..GPUS {
        let ask = yard.asking(yard.staying(&format!("full-{n}")), "count", "1")?;
        all.extend(exactly(&yard.held(&ask)?, 1)?);
    }
    must(all.len() == GPUS, format_args!("the GPUs given out: {all:?}"))?;
    let next = yard.engine.run(&yard.asking(yard.probing("next"), "count", "1")?)?;
    let told = next.stderr.contains("CAPACITY_FULL") && next.stderr.contains("try again when");
    must(!next.ok() && told, format_args!("told: {next:?}"))?;
    for gpu in &yard.site.host.gpus {
        let told = next.stderr.contains(&gpu.uuid) || next.stderr.contains(&gpu.pci);
        must(!told, format_args!("a tenant learns of others: {}", next.stderr))?;
    }
    exactly(&yard.see(&yard.probing("without"))?, 0)?;
    yard.remove("full-1")?;
    exactly(&yard.see(&yard.asking(yard.probing("again"), "count", "1")?)?, 1)?;
    Ok(())
}

/// A GPU's node bound by hand, with and without a request.
pub(super) fn bind(yard: &mut Yard) -> Result<()> {
    let node = yard.site.host.node("nvidia0");
    let shown = node.display().to_string();
    let bound = |ask: Ask| Ask { binds: vec![(node.clone(), "/x".into())], ..ask };
    let ask = bound(yard.probing("bound"));
    yard.refused(&ask, &["TENANT_GPU_MOUNT", &shown, "/mounts/", "leave the mount out, and ask for a GPU with"])?;
    let ask = yard.asking(bound(yard.probing("bound-asking")), "count", "1")?;
    yard.refused(&ask, &["TENANT_GPU_MOUNT", &shown, "leave the mount out: the GPUs that were asked for"])?;
    let folder = yard.site.host.root.join("dev");
    let ask = Ask { binds: vec![(folder, "/x".into())], ..yard.probing("folder") };
    yard.refused(&ask, &["TENANT_GPU_MOUNT"])
}

/// A GPU's node as a device, and a device that only looks like one.
pub(super) fn device(yard: &mut Yard) -> Result<()> {
    let node = yard.site.host.node("nvidia0");
    let ask = Ask { devices: vec![node], ..yard.probing("device") };
    yard.refused(&ask, &["TENANT_GPU_DEVICE", "195:0"])?;
    let fuse = Ask::new("fuse", "deb:1", ["sh", "-c", "exec 3<>/dev/fuse && echo open"]);
    let fuse = Ask { devices: vec!["/dev/fuse".into()], ..fuse };
    // In a user namespace the host's mode may keep it shut, whatever runtime there is.
    let control = yard.engine.run(&Ask { through: Through::Plain, ..fuse.clone() })?;
    let ran = yard.engine.run(&fuse)?;
    must(ran.stdout == control.stdout, format_args!("/dev/fuse: {ran:?}, without quilt-gpu: {control:?}"))
}

/// Strict and a GPU are a contradiction; strict alone is nothing.
pub(super) fn strict(yard: &mut Yard) -> Result<()> {
    let strict = |yard: &Yard, name: &str| yard.asking(yard.probing(name), "strict", "true");
    let ask = yard.asking(strict(yard, "strict")?, "count", "1")?;
    yard.refused(&ask, &["STRICT_GPU_CONFLICT", "drop strict, or drop the GPU request"])?;
    exactly(&yard.see(&strict(yard, "strict-alone")?)?, 0)?;
    Ok(())
}

/// Everything but GPUs, and none on request.
pub(super) fn privileged(yard: &mut Yard) -> Result<()> {
    let privileged = |ask: Ask| Ask { privileged: true, ..ask };
    let plain = Ask { through: Through::Plain, ..privileged(yard.probing("plain")) };
    let control = Seen::of(&yard.engine.run(&plain)?.checked()?.stdout)?;
    must(!control.open_numbers().is_empty(), "the control sees no GPU: this proves nothing")?;
    let seen = yard.see(&privileged(yard.probing("privileged")))?;
    let open = seen.open_numbers();
    must(open.is_empty(), format_args!("these numbers open: {open:?}"))?;
    must(seen.nodes().is_empty(), format_args!("these nodes are there: {:?}", seen.nodes()))?;
    let fuse = "mknod /tmp/f c 10 229 && exec 3<>/tmp/f && echo open";
    let ran = yard.engine.run(&privileged(Ask::new("fuse", "deb:1", ["sh", "-c", fuse])))?.checked()?;
    must(ran.stdout.contains("open"), format_args!("a privileged container lost /dev/fuse: {ran:?}"))?;
    let ask = yard.asking(privileged(yard.probing("privileged-asking")), "count", "1")?;
    yard.refused(&ask, &["UNSAFE_SPEC", "privileged"])
}
