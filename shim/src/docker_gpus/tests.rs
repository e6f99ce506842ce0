use contract::json;
use contract::request::{Asked, Source};
use serde_json::json;

use super::*;

/// Number, names and capabilities of the request that these variables make.
fn said(env: &[&str]) -> Result<Option<(u32, String, String)>, String> {
    let text = json!({"process": {"env": env}}).to_string();
    let spec = json::parse_oci(text.as_bytes()).unwrap();
    // A configuration that is not there, and no inventory.
    let setup = Setup::read(std::path::Path::new("/nowhere/config.toml"));
    let asked = words(&spec, &setup).and_then(|words| words.ask(Source::VisibleDevices));
    match asked.map_err(|refusal| format!("{} {}", refusal.code.name(), refusal.at))? {
        Asked::Gpus(request) => Ok(Some((request.count, request.ids.join(","), request.capabilities.list()))),
        _ => Ok(None),
    }
}

#[test]
fn what_docker_writes_for_each_form_of_its_option() {
    let visible = |value: &str| format!("NVIDIA_VISIBLE_DEVICES={value}");
    // The option is there, so that starting without a GPU would be no answer.
    let nothing = || Err("INVALID_GPU_REQUEST /process/env".to_owned());
    let gpus = |count, ids: &str| Ok(Some((count, ids.to_owned(), "compute,utility".to_owned())));
    for (value, expected) in [
        ("0", gpus(1, "")),
        ("0,1,2", gpus(3, "")),
        ("all", gpus(1, "all")),
        ("GPU-1a2b,GPU-3c4d", gpus(2, "GPU-1a2b,GPU-3c4d")),
        ("1", gpus(1, "1")),
        ("0,2", gpus(2, "0,2")),
        ("1,0", gpus(2, "1,0")),
        ("0,GPU-1a2b", gpus(2, "0,GPU-1a2b")),
        ("", nothing()),
        ("none", nothing()),
        ("GPU-1a2b,void", nothing()),
    ] {
        // The image's stands before Docker's, and says more, or less.
        for image in ["all", "void", "none", ""] {
            assert_eq!(said(&[&visible(image), &visible(value)]), expected, "{image:?} {value:?}");
        }
    }
    assert_eq!(said(&["A=b"]), nothing());
    for (value, expected) in
        [("all", "compute,utility"), ("utility", "utility"), ("compute,video,utility", "compute,utility")]
    {
        let (_, _, capabilities) =
            said(&[&visible("0"), &format!("NVIDIA_DRIVER_CAPABILITIES={value}")]).unwrap().unwrap();
        assert_eq!(capabilities, expected, "{value}");
    }
}
