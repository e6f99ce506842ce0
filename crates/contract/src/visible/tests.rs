use crate::request::{Asked, Request, Source};

use super::*;

const CEILING: &str = "compute,utility,video";

/// What is asked for in one line: ids, capabilities, and how many notes; `-` for nothing.
fn told(environment: &[&str]) -> String {
    let ceiling = Capabilities::parse(CEILING).unwrap();
    let swarm = ["DOCKER_RESOURCE_NVIDIA-GPU".to_owned(), "DOCKER_RESOURCE_GPU".to_owned()];
    let text = serde_json::to_string(environment).unwrap();
    let entries = crate::json::parse_data(text.as_bytes()).unwrap();
    let said = match said(entries.items(), &swarm, &ceiling) {
        Err(refusal) => return format!("{} {}", refusal.code.name(), refusal.at),
        Ok(said) => said,
    };
    match said.words.ask(Source::VisibleDevices) {
        Ok(Asked::Nothing) => "-".to_owned(),
        Ok(Asked::Gpus(Request { ids, capabilities, .. })) => {
            format!("{} {} {}", ids.join(","), capabilities.list(), said.notes.len())
        }
        other => panic!("{environment:?}: {other:?}"),
    }
}

/// Every row of what NVIDIA's toolkit reads in the variable: the value, what that toolkit makes of it, what we do.
#[test]
fn values() {
    for (value, theirs, ours) in [
        ("", "no GPU container", "-"),
        ("void", "no GPU container", "-"),
        ("0,void", "no GPU container", "-"),
        (" , ,", "no ids, which a later step takes for all", "-"),
        ("all", "every GPU and every instance", "all"),
        ("0,all", "the first of all and none decides", "all"),
        ("all,none", "the first of all and none decides", "-"),
        ("none", "libraries and no GPU", "-"),
        ("0", "by index", "0"),
        ("0,2", "by index", "0,2"),
        (" 0 , 2 ,", "trimmed, empty elements dropped", "0,2"),
        ("GPU-7af7a99b-aaaa", "by UUID", "GPU-7af7a99b-aaaa"),
        ("MIG-c0ffee", "a MIG device", "MIG-c0ffee"),
        ("MIG-GPU-7af7a99b/1/0", "a MIG device", "MIG-GPU-7af7a99b/1/0"),
        ("0:1", "GPU index and MIG index", "0:1"),
        ("nvidia.com/gpu=0", "a CDI device", "0"),
        ("nvidia.com/gpu=all", "a CDI device", "all"),
        ("quilt.gpu/device=nvidia1", "a CDI device", "nvidia1"),
        ("runtime.nvidia.com/gpu=GPU-1", "made just in time", "GPU-1"),
        ("vendor.com/nic=eth0", "a CDI device", "INVALID_GPU_REQUEST /process/env/0"),
        ("management.nvidia.com/gpu=all", "every node of the driver", "INVALID_GPU_REQUEST /process/env/0"),
        ("0,0", "a hole, which reads as none", "0"),
        ("GPU-A,gpu-a", "twice the same", "GPU-A"),
        ("0000:41:00.0", "by PCI address, in legacy mode", "0000:41:00.0"),
        ("GPU-7af", "an abbreviation, in legacy mode", "GPU-7af"),
        // D25: a word is an id, which this node may not have.
        ("1", "by index", "1"),
        ("false", "an unknown device", "false"),
        ("0,", "by index", "0"),
        ("0, 1", "trimmed", "0,1"),
        ("all,0", "the first of all and none decides", "all"),
        ("ALL", "in any case, in legacy mode", "all"),
    ] {
        let ours = match ours {
            "-" | "INVALID_GPU_REQUEST /process/env/0" => ours.to_owned(),
            ids => format!("{ids} compute,utility 0"),
        };
        assert_eq!(told(&[&format!("{VISIBLE}={value}")]), ours, "{value:?}; NVIDIA's toolkit: {theirs}");
    }
}

/// Every row of the variables beside it.
#[test]
fn other_variables() {
    let with = |more: &[&str]| told(&[&["NVIDIA_VISIBLE_DEVICES=0"], more].concat());
    for (more, theirs, ours) in [
        (&["NVIDIA_DRIVER_CAPABILITIES="][..], "utility and compute", "0 compute,utility 0"),
        (&["NVIDIA_DRIVER_CAPABILITIES=utility"], "as it says", "0 utility 0"),
        (&["NVIDIA_DRIVER_CAPABILITIES=all"], "whatever is supported", "0 compute,utility,video 0"),
        (&["NVIDIA_DRIVER_CAPABILITIES=video, utility"], "as it says", "0 utility,video 0"),
        (&["NVIDIA_DRIVER_CAPABILITIES=compute,graphics,ngx"], "unsupported ones are an error", "0 compute 1"),
        (&["NVIDIA_DRIVER_CAPABILITIES=magic"], "an error", "INVALID_GPU_REQUEST /process/env/1"),
        (&["NVIDIA_DRIVER_CAPABILITIES=all", "NVIDIA_DRIVER_CAPABILITIES=utility"], "the last", "0 utility 0"),
        (
            &["NVIDIA_REQUIRE_CUDA=cuda>=99"],
            "a condition, judged with the contract ([policy] cuda)",
            "0 compute,utility 0",
        ),
        (&["NVIDIA_DISABLE_REQUIRE=true"], "the same", "0 compute,utility 0"),
        (&["NVIDIA_REQUIRE_JETPACK=csv-mounts=all"], "more files on Tegra", "0 compute,utility 0"),
        (&["CUDA_VERSION=12.4"], "an old image, which is asked for all capabilities", "0 compute,utility 0"),
        (&["NVIDIA_IMEX_CHANNELS=0"], "channels", "0 compute,utility 1"),
        (&["NVIDIA_IMEX_CHANNELS=none"], "all channels, by mistake", "0 compute,utility 0"),
        (&["NVIDIA_MIG_CONFIG_DEVICES=all"], "every GPU's partitioning", "0 compute,utility 1"),
        (&["NVIDIA_MIG_MONITOR_DEVICES=all"], "every instance's counters", "0 compute,utility 1"),
        (&["NVIDIA_GDS=enabled", "NVIDIA_MOFED=enabled"], "nodes of other drivers", "0 compute,utility 2"),
        (&["NVIDIA_GDRCOPY=enabled", "NVIDIA_NVSWITCH=enabled"], "nodes of other drivers", "0 compute,utility 2"),
        (&["CUDA_VISIBLE_DEVICES=3"], "never read", "0 compute,utility 0"),
    ] {
        assert_eq!(with(more), ours, "{more:?}; NVIDIA's toolkit: {theirs}");
    }
    // An old image alone is given every GPU there; a variable that is not there asks for nothing here.
    assert_eq!(told(&["CUDA_VERSION=11.0"]), "-");
    assert_eq!(told(&["NVIDIA_DRIVER_CAPABILITIES=all", "NVIDIA_GDS=enabled"]), "-");
}

#[test]
fn of_several_copies_the_least_counts_and_swarm_before_an_image() {
    for (environment, ours) in [
        (&["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_VISIBLE_DEVICES=0"][..], "0 compute,utility 0"),
        (&["NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_VISIBLE_DEVICES=all"], "0 compute,utility 0"),
        (&["NVIDIA_VISIBLE_DEVICES=0,1", "NVIDIA_VISIBLE_DEVICES=2"], "2 compute,utility 0"),
        (&["NVIDIA_VISIBLE_DEVICES=void", "NVIDIA_VISIBLE_DEVICES=all"], "-"),
        // D27
        (
            &["NVIDIA_VISIBLE_DEVICES=all", "DOCKER_RESOURCE_NVIDIA-GPU=GPU-7af7a99b,GPU-e934c858"],
            "GPU-7af7a99b,GPU-e934c858 compute,utility 0",
        ),
        (&["DOCKER_RESOURCE_GPU=GPU-b", "DOCKER_RESOURCE_NVIDIA-GPU=GPU-a,GPU-b"], "GPU-a,GPU-b compute,utility 0"),
        (&["DOCKER_RESOURCE_GPU=", "NVIDIA_VISIBLE_DEVICES=all"], "-"),
        (&["DOCKER_RESOURCE_FPGA=x", "NVIDIA_VISIBLE_DEVICES=1"], "1 compute,utility 0"),
    ] {
        assert_eq!(told(environment), ours, "{environment:?}");
    }
}

#[test]
fn what_a_device_plugin_mounts() {
    for (rest, name) in [
        ("GPU-1", Some("GPU-1")),
        ("cdi/nvidia.com/gpu/0", Some("0")),
        ("cdi/nvidia.com/gpu=0", Some("0")),
        ("cdi/vendor.com/nic/0", None),
        ("imex/0", None),
    ] {
        assert_eq!(mounted(rest), name, "{rest}");
    }
}
