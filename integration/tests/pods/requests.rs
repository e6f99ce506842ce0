//! What is a request in a pod, and what only looks like one.

use std::collections::BTreeSet;

use integration::Result;
use integration::engine::{Ask, PodAsk};

use crate::{BAKED, IMAGE, LABELLED, on_each, sleeper};

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
