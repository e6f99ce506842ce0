//! NVIDIA's own generator of CDI documents on the same nodes: what it gives out and we do not, or otherwise, stands in a
//! table here with its reason. Its words are golden files (`integration/golden`), made from the same fixtures.
#![allow(clippy::unwrap_used)]

mod node;
mod table;
mod words;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use integration::{Binaries, Bundle, Quilt, QuiltOptions, Result, Rootfs, Scratch, Spec, root_for, say};
use serde_json::Value;

use words::Words;

/// The topologies on which it was asked.
const TOPOLOGIES: [&str; 2] = ["rtx4090", "a100-mig"];
const STUB: &str = env!("CARGO_BIN_EXE_quilt-stub");
const PROBE: &str = env!("CARGO_BIN_EXE_quilt-probe");
const EVERYTHING: &str = "compute,utility,graphics,video,display,dri";

#[test]
fn as_nvidia_has_it_or_for_a_reason() -> Result<()> {
    if !root_for("as_nvidia_has_it_or_for_a_reason") {
        return Ok(());
    }
    let (mut missing, mut used) = (Vec::new(), BTreeSet::new());
    for name in TOPOLOGIES {
        let topology = node::topology(name)?;
        let golden = node::workspace().join(format!("integration/golden/nvidia-ctk-1.18.0/{name}.json"));
        let theirs = words::theirs(&node::read(&golden)?, &node::text(&topology["driver_version"]));
        let Found { contract: ours, file } = found(&topology)?;
        // What engines put in by our file is what the runtime gives, but for what does not add up over several devices.
        let (mine, file) = (unnumbered(&ours), unnumbered(&file));
        let only = mine.symmetric_difference(&file).map(String::as_str);
        // These are for owners that policy names, and nobody owns a file.
        let only: Vec<_> = only.filter(|word| !word.starts_with("control /dev/nvidia-caps/nvidia-cap")).collect();
        assert_eq!(only, ["env CUDA_VISIBLE_DEVICES"], "{name}");
        let same = theirs.intersection(&ours).count();
        say(format_args!("{name}: {same} the same, {} theirs, {} ours", theirs.len() - same, ours.len() - same));
        for (word, row) in table::explained(&theirs, &ours) {
            match row {
                Some(row) => drop(used.insert(row)),
                None => missing.push(format!("{name}: {word}")),
            }
        }
    }
    assert!(missing.is_empty(), "no reason is known for:\n{}", missing.join("\n"));
    let idle: Vec<_> = (0..table::DIFFERENCES.len()).filter(|row| !used.contains(row)).collect();
    assert!(
        idle.is_empty(),
        "no difference: {:?}",
        idle.iter().map(|row| table::DIFFERENCES[*row]).collect::<Vec<_>>()
    );
    Ok(())
}

/// The same without an instance's name: a GPU that cannot be used has an index with NVML, and none with us.
fn unnumbered(words: &Words) -> Words {
    let bare = |word: &String| match word.strip_prefix("mig ").and_then(|rest| rest.split_once(' ')) {
        Some((_, path)) => format!("mig {path}"),
        None => word.clone(),
    };
    words.iter().map(bare).collect()
}

/// What quilt-gpu finds on a node.
struct Found {
    /// What it gives a container that asks for everything.
    contract: Words,
    /// What its CDI file says.
    file: Words,
}

/// Looks at a node.
fn found(topology: &Value) -> Result<Found> {
    let scratch = Scratch::new()?;
    let host = node::lay_out(scratch.join("host"), topology)?;
    let options = QuiltOptions { verify: false, low_level: vec![STUB.into()], ..QuiltOptions::default() };
    let quilt = Quilt::install(scratch.join("quilt"), &host, &Binaries::locate()?, &options)?;
    let config = fs::read_to_string(quilt.config()).unwrap();
    let everything = format!("[policy]\ncapabilities = \"{EVERYTHING}\"\n");
    // The generator asks NVML too.
    let config = config.replace("[policy]\n", &everything).replace("nvml = \"off\"\n", "");
    fs::write(quilt.config(), config).unwrap();
    quilt.cli(&["inventory", "refresh"])?.checked()?;
    let inventory = quilt.cli(&["inventory", "--format", "json"])?.checked()?.stdout;
    let inventory: Value = serde_json::from_str(&inventory).unwrap();
    let rootfs = Rootfs::debian_like(scratch.join("rootfs"), Path::new(PROBE))?;
    let spec = Spec::new().env("QUILT_GPU_COUNT", "1").env("QUILT_GPU_CAPABILITIES", EVERYTHING);
    let bundle = Bundle::sharing(scratch.join("bundle"), &spec, &rootfs)?;
    let runtime = quilt.runc(scratch.join("runtime"))?;
    runtime.create("peer", &bundle)?.checked()?;
    let root = host.root.to_string_lossy().into_owned();
    let words = words::ours(&inventory, &bundle.read()?, &root, topology)?;
    runtime.delete("peer", true)?.checked()?;
    let file = quilt.cli(&["cdi", "generate", "--capabilities", EVERYTHING])?.checked()?.stdout;
    let file: Value = serde_json::from_str(&file.replace(&root, "")).unwrap();
    let file = words::theirs(&file, &node::text(&topology["driver_version"]));
    Ok(Found { contract: words, file })
}

/// For `integration/golden/record.sh`, which asks it.
#[test]
fn lay_out() -> Result<()> {
    let Some(folder) = std::env::var_os("QUILT_PEER_LAY_OUT") else { return Ok(()) };
    if root_for("lay_out") {
        for name in TOPOLOGIES {
            node::lay_out(Path::new(&folder).join(name), &node::topology(name)?)?;
        }
    }
    Ok(())
}
