use std::fs;
use std::os::unix::fs::symlink;

use super::*;

fn words(text: &str) -> Vec<String> {
    text.split(' ').map(str::to_owned).collect()
}

#[test]
fn words_of_the_hook() {
    for (text, expected) in [
        ("hook precreate", Ok(None)),
        ("hook", Ok(None)),
        ("hook create-links", Ok(Some((true, 0)))),
        ("hook update-cache --library /a/b.so --library32 /c/d.so", Ok(Some((false, 2)))),
        ("hook update-cache --library b.so", Err("not an absolute path")),
        ("hook update-cache --library", Err("not an absolute path")),
        ("hook create-links --link a::b", Err("unknown option --link")),
    ] {
        match (Call::parse(&words(text)), expected) {
            (Ok(call), Ok(expected)) => assert_eq!(call.map(|c| (c.links, c.libraries.len())), expected, "{text}"),
            (Err(told), Err(part)) => assert!(told.contains(part), "{text}: {told}"),
            (told, _) => panic!("{text}: {told:?}"),
        }
    }
}

/// A bundle with a musl image that has one library where a CDI file puts it; what the hook says, and the image's root.
fn called(prepare: impl FnOnce(&Path)) -> (Vec<String>, tempfile::TempDir) {
    let bundle = tempfile::tempdir().unwrap();
    let root = bundle.path().join("rootfs");
    for (name, text) in [("lib/ld-musl-x86_64.so.1", "x"), ("usr/lib64/libcuda.so.1", "ours")] {
        fs::create_dir_all(root.join(name).parent().unwrap()).unwrap();
        fs::write(root.join(name), text).unwrap();
    }
    fs::write(bundle.path().join("config.json"), r#"{"ociVersion":"1.0.2","root":{"path":"rootfs"}}"#).unwrap();
    prepare(&root);
    let call = words("hook create-links --library /usr/lib64/libcuda.so.1 --library /usr/lib64/absent.so.1");
    let state = format!(r#"{{"id":"c","pid":1,"bundle":"{}"}}"#, bundle.path().display());
    let said = run(&Call::parse(&call).unwrap().unwrap(), state.as_bytes()).unwrap();
    (said, bundle)
}

#[cfg(target_arch = "x86_64")]
#[test]
fn links_go_where_the_images_loader_searches_and_never_out_of_it() {
    let outside = tempfile::tempdir().unwrap();
    let path = "etc/ld-musl-x86_64.path";
    let search = |root: &Path, folder: &str| {
        fs::create_dir_all(root.join("etc")).unwrap();
        fs::write(root.join(path), folder).unwrap();
    };
    let (said, bundle) = called(|_| {});
    assert_eq!(said, Vec::<String>::new());
    let link = |name: &str| fs::read_link(bundle.path().join("rootfs").join(name)).ok();
    // Below /usr first, as for binds, and the plain name beside it.
    for (name, there) in [("libcuda.so.1", true), ("libcuda.so", true), ("absent.so.1", false)] {
        let expected = there.then(|| PathBuf::from("/usr/lib64/libcuda.so.1"));
        assert_eq!(link(&format!("usr/lib/{name}")), expected, "{name}");
    }
    // Folders are made, and what is there stays.
    let (said, bundle) = called(|root| search(root, "/opt/own/lib"));
    assert_eq!(said, Vec::<String>::new());
    assert!(bundle.path().join("rootfs/opt/own/lib/libcuda.so.1").is_symlink());
    let (said, bundle) = called(|root| {
        fs::create_dir(root.join("usr/lib")).unwrap();
        fs::write(root.join("usr/lib/libcuda.so.1"), "theirs").unwrap();
    });
    assert_eq!(said, Vec::<String>::new());
    assert_eq!(fs::read_to_string(bundle.path().join("rootfs/usr/lib/libcuda.so.1")).unwrap(), "theirs");
    // A link of the image's that leads out is taken inside, where nothing is: said, and nothing made.
    let (said, _bundle) = called(|root| {
        search(root, "/trap/lib");
        symlink(outside.path(), root.join("trap")).unwrap();
    });
    assert!(matches!(said.as_slice(), [one] if one.contains("/trap/lib/libcuda.so.1")), "{said:?}");
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0);
}
