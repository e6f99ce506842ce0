//! What is a request in a pod, and what only looks like one.

use std::collections::BTreeSet;

use integration::engine::{Ask, Engine, PodAsk};
use integration::{Result, Rootfs};

use crate::{BAKED, IMAGE, LABELLED, WISHING, on_each, sleeper};

#[test]
fn only_the_pods_annotations_ask() -> Result<()> {
    on_each("only_the_pods_annotations_ask", 1, |yard| {
        let words = [("quilt.gpu/count", "1"), ("quilt.gpu/count.main", "1"), ("grant.quilt.gpu/count", "1")];
        yard.image(LABELLED, &[], &words)?;
        let labels = words.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        let pod = yard.cri.pod(&PodAsk { labels, ..PodAsk::new("quiet") })?;
        let environment = Ask { env: vec![("QUILT_GPU_COUNT".into(), "1".into())], ..sleeper("main") };
        let labelled = Ask { image: LABELLED.into(), ..sleeper("main") };
        for (attempt, ask) in [environment, labelled].iter().enumerate() {
            let container = yard.cri.create_again(&pod, ask, u32::try_from(attempt).unwrap())?;
            yard.cri.launch(&container)?.checked()?;
            let seen = yard.look(&container)?;
            assert_eq!(seen.gpus()?, BTreeSet::new(), "{ask:?}");
            assert_eq!(seen.env("QUILT_GPU_COUNT").is_some(), ask.image == IMAGE, "variables are left alone");
            assert_eq!(seen.env("NVIDIA_VISIBLE_DEVICES"), None);
        }
        assert!(yard.site.leases()?.is_empty());

        // The same container of a pod that says it in its annotations, so that there was something to miss.
        let pod = yard.pod("asking", &words[1..2])?;
        assert_eq!(yard.look(&yard.started(&pod, &sleeper("main"))?)?.gpus()?.len(), 1);
        Ok(())
    })
}

#[test]
fn images_for_cuda_get_what_was_granted_and_else_nothing() -> Result<()> {
    on_each("images_for_cuda_get_what_was_granted_and_else_nothing", 2, |yard| {
        yard.image(BAKED, &[("NVIDIA_VISIBLE_DEVICES", "all"), ("CUDA_VERSION", "12.2.0")], &[])?;
        let pod = yard.pod("cuda", &[("quilt.gpu/count.main", "1")])?;
        for name in ["side", "main"] {
            // The image's variable and the pod's: containerd 1.6 writes both into config.json.
            for env in [vec![], vec![("NVIDIA_VISIBLE_DEVICES".to_owned(), "0".to_owned())]] {
                let twice = !env.is_empty();
                let ask =
                    Ask { image: BAKED.into(), env, ..sleeper(&format!("{name}{}", if twice { "-2" } else { "" })) };
                let ask = if name == "main" { Ask { name: name.into(), ..ask } } else { ask };
                let container = yard.cri.create_again(&pod, &ask, u32::from(twice))?;
                yard.cri.launch(&container)?.checked()?;
                let gpus = yard.look(&container)?.gpus()?;
                let environ = yard.cri.exec_in(&container, &["cat", "/proc/1/environ"])?.checked()?.stdout;
                let said: Vec<&str> =
                    environ.split('\0').filter_map(|entry| entry.strip_prefix("NVIDIA_VISIBLE_DEVICES=")).collect();
                let expected = gpus.first().map_or("void", |minor| &yard.site.host.by_minor(*minor).unwrap().uuid);
                assert!(!said.is_empty() && said.iter().all(|value| *value == expected), "{ask:?}: {said:?}");
                assert_eq!(gpus.len(), usize::from(name == "main"), "{ask:?}");
            }
        }
        Ok(())
    })
}

/// Variables that ask other tools for GPUs or lead their loaders astray, as an image can bake them.
const WISHES: [(&str, &str); 12] = [
    ("NVIDIA_VISIBLE_DEVICES", "all"),
    ("NVIDIA_DRIVER_CAPABILITIES", "all"),
    ("NVIDIA_IMEX_CHANNELS", "0"),
    ("NVIDIA_REQUIRE_CUDA", "cuda>=99.0"),
    ("CUDA_VERSION", "12.2.0"),
    ("CUDA_VISIBLE_DEVICES", "0,1,2,3,4,5,6,7"),
    ("QUILT_GPU_COUNT", "8"),
    ("QUILT_GPU_IDS", "nvidia0"),
    ("QUILT_GPU_CONFIG", "/etc/nvidia-container-runtime/config.toml"),
    ("LD_PRELOAD", "/proc/self/cwd/preload.so"),
    ("LD_LIBRARY_PATH", "/usr/local/cuda/compat"),
    ("GLIBC_TUNABLES", "glibc.malloc.check=3"),
];

/// Files that other injectors look for, read or follow.
const TRIGGERS: [&str; 9] = [
    ".dockerenv",
    "run/.containerenv",
    ".singularity.d/env/90-environment.sh",
    "etc/nvidia/nvidia-application-profiles-rc.d/x",
    "etc/nvidia-container-runtime/config.toml",
    "etc/ld.so.conf.d/000_cuda.conf",
    "usr/local/cuda/compat/libcuda.so.999.1",
    "var/run/nvidia-container-devices/all",
    "preload.so",
];

/// An image that says in every way known that it wants all GPUs.
#[test]
fn an_image_that_bakes_every_wish_starts_and_has_no_gpu() -> Result<()> {
    on_each("an_image_that_bakes_every_wish_starts_and_has_no_gpu", 2, |yard| {
        let rootfs = Rootfs { path: yard.site.join("debian") }.copy_to(yard.site.join("wishing"))?;
        for name in TRIGGERS {
            rootfs.write(name, b"../../../../../../../../etc\n")?;
        }
        yard.cri.import(WISHING, &rootfs, &WISHES, &[("quilt.gpu/count", "8")])?;
        let pod = yard.pod("wishing", &[("quilt.gpu/count.asked", "1")])?;
        for (name, count) in [("main", 0), ("asked", 1)] {
            let container = yard.started(&pod, &Ask { image: WISHING.into(), ..sleeper(name) })?;
            assert_eq!(yard.look(&container)?.gpus()?.len(), count, "{name}");
            // Of the container's own process: an exec has what its caller says.
            let environ = yard.cri.exec_in(&container, &["cat", "/proc/1/environ"])?.checked()?.stdout;
            let has = |entry: &str| environ.split('\0').any(|variable| variable == entry);
            assert_eq!(has("NVIDIA_VISIBLE_DEVICES=void"), count == 0, "{name}: {environ:?}");
            assert!(!has("NVIDIA_VISIBLE_DEVICES=all") && has("QUILT_GPU_COUNT=8"), "{name}: {environ:?}");
        }
        assert_eq!(yard.site.leases()?.len(), 1);
        Ok(())
    })
}
