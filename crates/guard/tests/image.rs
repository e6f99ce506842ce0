//! What an image must be so that nothing is made outside it.

mod common;

use common::{By, Fake, Spec, gpu, hardened, judge_text, verdict};

fn text(root: &str) -> String {
    Spec { root: root.into(), ..Spec::default() }.text()
}

/// G2, Q55: CVE-2026-41579 of runc, CVE-2026-47766 of crun.
#[test]
fn a_link_in_the_place_of_dev_proc_or_sys_is_refused() {
    let bundle = common::BUNDLE;
    for (written, top) in [("rootfs", format!("{bundle}/rootfs")), ("/images/x/", "/images/x".into())] {
        for place in ["dev", "proc", "sys"] {
            let mut fake = Fake::default();
            fake.file(&format!("{top}/{place}"), "/etc/hosts");
            for by in [By::default(), gpu(), hardened()] {
                let judged = judge_text(&text(written), &by, &fake);
                assert_eq!(verdict(&judged), "UNSAFE_SPEC rootfs-type", "{written} {place}");
                assert_eq!(judged.refusals[0].at, "/root/path");
            }
        }
    }
}

#[test]
fn folders_there_and_links_elsewhere_pass() {
    let mut fake = Fake::default();
    for place in ["dev", "proc", "sys"] {
        fake.dir(&format!("/images/x/{place}"), |_| {});
    }
    for place in ["lib", "bin", "var/run", "dev/fd"] {
        fake.file(&format!("/images/x/{place}"), "/etc/hosts");
    }
    for root in ["/images/x", "/images/empty"] {
        for by in [By::default(), gpu(), hardened()] {
            assert_eq!(verdict(&judge_text(&text(root), &by, &fake)), "ok", "{root}");
        }
    }
}
