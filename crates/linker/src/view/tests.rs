//! Tables of images and libraries, and what holds for any.

use proptest::prelude::*;

use super::*;

fn glibc(folders: &[&str], folders32: &[&str]) -> Image {
    Image::Glibc {
        folders: folders.iter().map(|folder| (*folder).to_owned()).collect(),
        folders32: folders32.iter().map(|folder| (*folder).to_owned()).collect(),
    }
}

fn debian() -> Image {
    glibc(
        &["/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib", "/usr/lib"],
        &["/lib/i386-linux-gnu", "/usr/lib/i386-linux-gnu", "/lib", "/usr/lib"],
    )
}

fn on_musl(folders: &[&str]) -> Image {
    Image::Musl { folders: folders.iter().map(|folder| (*folder).to_owned()).collect() }
}

fn wide<'a>(host_path: &'a str, soname: &'a str) -> Library<'a> {
    Library { host_path, soname: Some(soname), class: Class::Elf64 }
}

fn narrow<'a>(host_path: &'a str, soname: &'a str) -> Library<'a> {
    Library { class: Class::Elf32, ..wide(host_path, soname) }
}

fn binds<'a>(view: &'a View<'_>) -> Vec<(&'a str, &'a str)> {
    view.binds.iter().map(|bind| (bind.host_path, bind.container_path.as_str())).collect()
}

fn codes(view: &View<'_>) -> Vec<&'static str> {
    view.notes.iter().map(|note| note.code).collect()
}

#[test]
fn the_folder_is_one_that_the_loader_searches() {
    let store = "/nix/store/abc-glibc-2.40/lib";
    let table: [(Image, &[&str], &str, &[&str]); 12] = [
        (debian(), &["/usr/lib/x86_64-linux-gnu", "/usr/lib"], "/usr/lib/x86_64-linux-gnu", &[]),
        (debian(), &["/usr/lib", "/lib"], "/usr/lib", &[]),
        (debian(), &[], "/usr/lib/x86_64-linux-gnu", &[]),
        (glibc(&["/lib64", "/usr/lib64"], &[]), &["/lib64"], "/usr/lib64", &[]),
        (glibc(&["/lib64"], &[]), &[], "/lib64", &[]),
        (glibc(&[store], &[]), &["/nix/store"], store, &[]),
        (glibc(&[], &[]), &["/usr/lib"], "/usr/lib64", &["image-loader"]),
        (on_musl(&["/lib", "/usr/lib"]), &["/usr/lib"], "/usr/lib", &["image-musl"]),
        (on_musl(&["/lib/x-musl"]), &[], "/lib/x-musl", &["image-musl"]),
        (on_musl(&[]), &[], "/usr/lib64", &["image-musl"]),
        (Image::NoLoader, &["/bin"], "/usr/lib64", &["image-no-loader"]),
        (Image::NoLoader, &["/nix/store"], "/run/opengl-driver/lib", &[]),
    ];
    for (row, (image, existing, folder, notes)) in table.into_iter().enumerate() {
        let library = [wide("/h/libcuda.so.550.54.15", "libcuda.so.1")];
        let view = plan(&image, &library, |path| existing.contains(&path));
        assert_eq!(view.folder, folder, "row {row}");
        assert_eq!(codes(&view), notes, "row {row}");
        let (soname, plain) = (format!("{folder}/libcuda.so.1"), format!("{folder}/libcuda.so"));
        let expected = [(library[0].host_path, &*soname), (library[0].host_path, &*plain)];
        assert_eq!(binds(&view), expected, "row {row}");
    }
}

#[test]
fn names_are_sonames_then_plain_names() {
    let unnamed = |host_path| Library { host_path, soname: None, class: Class::Elf64 };
    let long = "x".repeat(MAX_NAME_BYTES + 1);
    type Names<'a> = &'a [&'a str];
    let table: [(&[Library<'_>], Names<'_>, Names<'_>); 13] = [
        (&[wide("/h/libx.so.5", &long)], &["libx.so.5"], &["library-name"]),
        (&[wide("/h/libnvidia-ml.so.550", "libnvidia-ml.so.1")], &["libnvidia-ml.so.1", "libnvidia-ml.so"], &[]),
        (&[wide("/h/libnvidia-glsi.so.550", "libnvidia-glsi.so.550")], &["libnvidia-glsi.so.550"], &[]),
        (&[wide("/h/libcuda.so.550", "libcuda.so")], &["libcuda.so"], &[]),
        (&[wide("/h/libcudadebugger.so.550", "libcudadebugger.so.1")], &["libcudadebugger.so.1"], &[]),
        (&[unnamed("/h/libcuda.so.550")], &["libcuda.so.550", "libcuda.so"], &[]),
        (&[wide("/h/libx.so.5", "../../etc/passwd")], &["libx.so.5"], &["library-name"]),
        (&[wide("/h/libx.so.5", "")], &["libx.so.5"], &["library-name"]),
        (&[wide("/h/libx.so.5", "a\0b")], &["libx.so.5"], &["library-name"]),
        (&[wide("/h/libx.so.5", "..")], &["libx.so.5"], &["library-name"]),
        (&[unnamed("/h/.."), unnamed("/h/"), unnamed("")], &[], &["library-name"; 3]),
        (
            &[wide("/a/libcuda.so.550", "libcuda.so.1"), wide("/b/libcuda.so.470", "libcuda.so.1")],
            &["libcuda.so.1", "libcuda.so"],
            &["library-duplicate"],
        ),
        // A library that is named so has the plain name, wherever it stands in the list.
        (
            &[wide("/h/libcuda.so.550", "libcuda.so.1"), wide("/h/stub", "libcuda.so")],
            &["libcuda.so.1", "libcuda.so"],
            &["library-duplicate"],
        ),
    ];
    for (row, (libraries, names, notes)) in table.into_iter().enumerate() {
        let view = plan(&debian(), libraries, |_| true);
        let bound: Vec<&str> = (binds(&view).into_iter())
            .map(|(_, path)| path.strip_prefix("/usr/lib/x86_64-linux-gnu/").expect(path))
            .collect();
        assert_eq!(bound, names, "row {row}");
        assert_eq!(codes(&view), notes, "row {row}");
    }
}

#[test]
fn the_first_of_two_libraries_with_one_name_is_bound() {
    let libraries = [wide("/a/libcuda.so.550", "libcuda.so.1"), wide("/b/libcuda.so.470", "libcuda.so.1")];
    let view = plan(&debian(), &libraries, |_| true);
    assert!(view.binds.iter().all(|bind| bind.host_path == "/a/libcuda.so.550"));
    assert_eq!(view.notes[0].message, "/b/libcuda.so.470 is left out: /a/libcuda.so.550 is libcuda.so.1 already");
}

#[test]
fn narrow_libraries_have_a_folder_of_their_own_or_stay_out() {
    let libraries = [
        wide("/usr/lib64/libGLX_nvidia.so.550", "libGLX_nvidia.so.0"),
        narrow("/usr/lib32/libGLX_nvidia.so.550", "libGLX_nvidia.so.0"),
    ];
    let fedora = glibc(&["/lib64", "/usr/lib64"], &["/lib", "/usr/lib"]);
    let table = [
        (debian(), Some("/usr/lib/i386-linux-gnu")),
        (fedora, Some("/usr/lib")),
        (glibc(&["/lib64", "/usr/lib64"], &[]), None),
        // Every folder of the 32-bit loader is one of the 64-bit loader's, too.
        (glibc(&["/lib", "/usr/lib"], &["/lib", "/usr/lib"]), None),
        (glibc(&[], &["/usr/lib64"]), None),
        (on_musl(&["/lib"]), None),
        (Image::NoLoader, None),
    ];
    for (row, (image, folder32)) in table.into_iter().enumerate() {
        let view = plan(&image, &libraries, |_| false);
        let narrow: Vec<&str> = (binds(&view).into_iter())
            .filter(|(host, _)| host.starts_with("/usr/lib32/"))
            .map(|(_, container)| container)
            .collect();
        let expected: Vec<String> = folder32.iter().map(|folder| format!("{folder}/libGLX_nvidia.so.0")).collect();
        assert_eq!(narrow, expected, "row {row}");
        assert_eq!(codes(&view).contains(&"library-32bit"), folder32.is_none(), "row {row}");
    }
}

#[test]
fn container_paths_do_not_know_the_node() {
    let at = |root: &str| -> Vec<String> {
        let paths = ["libcuda.so.550", "libnvidia-ml.so.550"].map(|name| format!("{root}/{name}"));
        let libraries = [wide(&paths[0], "libcuda.so.1"), Library { soname: None, ..wide(&paths[1], "") }];
        let view = plan(&debian(), &libraries, |_| true);
        view.binds.into_iter().map(|bind| bind.container_path).collect()
    };
    assert_eq!(at("/snap/docker/x17/graphics/lib"), at("/snap/docker/x18/graphics/lib"));
    assert_eq!(at("/opt/nvidia/lib64"), at("/home/kubernetes/bin/nvidia/lib64"));
}

#[test]
fn plain_names() {
    assert!(OPENED_PLAIN.is_sorted());
    let table = [
        ("libcuda.so.1", Some("libcuda.so")),
        ("libcuda.so.550.54.15", Some("libcuda.so")),
        ("libnvidia-opticalflow.so.1", Some("libnvidia-opticalflow.so")),
        ("libcuda.so", None),
        ("libcuda.sox", None),
        ("libcudadebugger.so.1", None),
        ("libnvidia-ptxjitcompiler.so.1", None),
        ("", None),
    ];
    for (soname, plain) in table {
        assert_eq!(plain_name(soname), plain, "{soname}");
    }
}

proptest! {
    #[test]
    fn any_libraries_give_different_paths_directly_below_their_folder(
        libraries in proptest::collection::vec(
            (
                "(/[a-c]{0,2}){0,3}/(libcuda|libx|\\.|\\.\\.)?(\\.so)?(\\.[12])?",
                proptest::option::of("(/|\\.\\./)?(libcuda|libnvidia-ml|libx)?(\\.so)?(\\.[12])?"),
                any::<bool>(),
            ),
            0..30,
        ),
        existing in any::<bool>(),
    ) {
        let libraries: Vec<Library<'_>> = libraries.iter()
            .map(|(host_path, soname, narrow)| Library {
                host_path,
                soname: soname.as_deref(),
                class: if *narrow { Class::Elf32 } else { Class::Elf64 },
            })
            .collect();
        let view = plan(&debian(), &libraries, |_| existing);
        let mut seen = std::collections::BTreeSet::new();
        for (host, container) in binds(&view) {
            let (folder, name) = container.rsplit_once('/').expect("an absolute path");
            prop_assert!(is_file_name(name));
            prop_assert!(seen.insert(container), "{container} twice");
            let class = if folder == view.folder { Class::Elf64 } else { Class::Elf32 };
            prop_assert!(folder == view.folder || folder == "/usr/lib/i386-linux-gnu");
            prop_assert!(libraries.iter().any(|library| library.host_path == host && library.class == class));
        }
        prop_assert_eq!(&plan(&debian(), &libraries, |_| existing), &view);
    }
}

#[test]
fn the_images_own_files_are_covered_where_its_cache_leads_to_them() {
    let libraries = [wide("/h/libcuda.so.550", "libcuda.so.1"), narrow("/h/32/libcuda.so.550", "libcuda.so.1")];
    let view = plan(&debian(), &libraries, |_| true);
    let ours = view.entries([0x0303, 3], false);
    let paths = |list: &[Entry<'_>]| list.iter().map(|e| (e.path.to_owned(), e.flags)).collect::<Vec<_>>();
    let own = ["/usr/lib/x86_64-linux-gnu/libcuda.so.1", "/usr/lib/i386-linux-gnu/libcuda.so.1"];
    assert_eq!(paths(&ours), [(own[0].to_owned(), 0x0303), (own[1].to_owned(), 3)]);
    assert_eq!(view.entries([0x0303, 3], true).len(), 4, "plain names too");
    let entry = |path, flags| Entry { name: "libcuda.so.1", path, flags, hwcap: 0 };
    let theirs = [
        entry("/opt/v3/libcuda.so.1", 0x0303),
        entry("/opt/libcuda.so.1", 0x0303),
        entry("/opt/libcuda.so.1", 0x0303),
        entry("/opt/libcuda.so.1", 3),
        entry("/lib/x86_64-linux-gnu/libcuda.so.1", 0x0303), // the same folder
        entry("/absent/libcuda.so.1", 0x0303),
        entry("/opt/../etc/passwd", 0x0303),
        entry("opt/libcuda.so.1", 0x0303),
        entry("/opt/arm/libcuda.so.1", 0x0a03),
        Entry { name: "libz.so.1", ..entry("/opt/libz.so.1", 0x0303) },
    ];
    let folder = |path: &str| (path != "/absent").then(|| path.trim_start_matches("/usr").to_owned());
    let covering = view.covering(&theirs, &ours, folder);
    let found: Vec<_> = covering.iter().map(|bind| (bind.host_path, bind.container_path.as_str())).collect();
    assert_eq!(found, [("/h/libcuda.so.550", "/opt/v3/libcuda.so.1"), ("/h/libcuda.so.550", "/opt/libcuda.so.1")]);
}

#[test]
fn a_frozen_image_gets_its_libraries_beside_the_nodes() {
    let view = plan(&frozen(), &[wide("/h/libcuda.so.550", "libcuda.so.1")], |_| false);
    assert_eq!(view.binds.iter().map(|b| b.container_path.as_str()).next(), Some("/dev/.quilt-gpu/lib/libcuda.so.1"));
}
