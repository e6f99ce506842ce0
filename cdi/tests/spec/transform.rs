//! Paths below another root.

use cdi::spec::{RelativeTo, Spec, move_root, validate};
use serde_json::json;

use crate::made::{everything, gpus, one, spec};

fn moved(spec: &Spec, from: &str, to: &str, which: RelativeTo) -> (Spec, usize) {
    let mut spec = spec.clone();
    let moved = move_root(&mut spec, from, to, which);
    assert_eq!(validate(&spec), []);
    (spec, moved)
}

#[test]
fn paths_of_the_host_move_and_those_of_the_container_stay() {
    let (moved, count) = moved(&spec(&gpus()), "/", "/run/driver", RelativeTo::Host);
    assert_eq!(count, 5 + 1 + 1);
    let node = &moved.devices[0].container_edits.device_nodes[0];
    assert_eq!((node.path.as_str(), node.host()), ("/dev/nvidia0", "/run/driver/dev/nvidia0"));
    let mount = &moved.container_edits.mounts[0];
    assert_eq!(
        (mount.host_path.as_str(), mount.container_path.as_str()),
        ("/run/driver/usr/lib/libcuda.so.535", "/usr/lib/libcuda.so.1")
    );
    assert_eq!(moved.container_edits.hooks[0].path, "/run/driver/usr/bin/nvidia-cdi-hook");
    assert_eq!(moved.cdi_version, "0.5.0");
}

#[test]
fn there_and_back_is_nothing() {
    for document in [gpus(), everything()] {
        let mut spec = spec(&document);
        // What says a path twice says it once afterwards.
        move_root(&mut spec, "/", "/a", RelativeTo::Host);
        move_root(&mut spec, "/a", "/", RelativeTo::Host);
        for which in [RelativeTo::Host, RelativeTo::Container] {
            let (there, _) = moved(&spec, "/", "/run/x/", which);
            assert_ne!(there, spec);
            assert_eq!(moved(&there, "/run/x/", "/", which).0, spec);
        }
    }
}

#[test]
fn whole_names_move() {
    let at = |path: &str| spec(&one("v.org/c", "x", &json!({"mounts": [{"hostPath": path, "containerPath": "/c"}]})));
    for (path, from, to, expected) in [
        ("/run/driver/lib", "/run/driver", "/", "/lib"),
        ("/run/driver", "/run/driver", "/", "/"),
        ("/run/driver2/lib", "/run/driver", "/", "/run/driver2/lib"),
        ("/run/driver/lib", "/run/driver/", "/x/", "/x/lib"),
        ("/lib", "/", "/x", "/x/lib"),
        ("tmpfs", "/", "/x", "tmpfs"),
        ("/lib", "/lib/x", "/y", "/lib"),
    ] {
        let (moved, count) = moved(&at(path), from, to, RelativeTo::Host);
        assert_eq!(moved.container_edits, at(path).container_edits);
        let host = &moved.devices[0].container_edits.mounts[0].host_path;
        assert_eq!((host.as_str(), count), (expected, usize::from(expected != path)), "{path} from {from} to {to}");
    }
}

#[test]
fn the_version_rises_with_what_a_move_makes_needed() {
    let mut old = one("v.org/c", "x", &json!({"deviceNodes": [{"path": "/dev/a"}]}));
    old["cdiVersion"] = json!("v0.3.0");
    let old = spec(&old);
    for which in [RelativeTo::Host, RelativeTo::Container] {
        let (moved, count) = moved(&old, "/", "/x", which);
        assert_eq!((moved.cdi_version.as_str(), count), ("0.5.0", 1));
    }
    assert_eq!(moved(&old, "/y", "/x", RelativeTo::Host), (old.clone(), 0));
}
