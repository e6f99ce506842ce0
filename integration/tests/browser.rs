//! The page of `quilt-gpu report` in a real browser, which `make browser` puts into `.cache/browser`: at the width of a phone and
//! of a desk nothing is wider than the window, every record has its row, and nothing is fetched. `helper` tests the page's text.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "helpers of tests")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use integration::{Result, Site, root_for, run, say};
use serde_json::Value;

/// What a copy of the page says of itself, once it is laid out.
const PROBE: &str = "<script>document.documentElement.setAttribute('data-seen', JSON.stringify({\
    wide: document.documentElement.scrollWidth, window: innerWidth,\
    rows: document.querySelectorAll('#records tbody tr').length,\
    refusals: document.querySelectorAll('#refusals tbody tr').length}))</script></body>";

fn browser(test: &str) -> Option<PathBuf> {
    let default = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../.cache");
    let root = std::env::var_os("QUILT_TEST_CACHE").map_or_else(default, PathBuf::from).join("browser");
    if !root.join("usr/bin/chromium-headless-shell").exists() {
        say(format_args!("{test}: skipped, {} holds no browser: make browser brings it", root.display()));
        return None;
    }
    Some(root)
}

/// A call of the browser in its root, with the machine's /proc and /dev while it lasts.
fn look(root: &Path, words: &[&str]) -> Result<String> {
    let script = "mount --rbind /proc \"$0/proc\" && mount --rbind /dev \"$0/dev\" && exec chroot \"$0\" \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script]).arg(root).arg("/usr/bin/chromium-headless-shell");
    command.args(["--no-sandbox", "--no-zygote", "--disable-gpu", "--disable-dev-shm-usage"]).args(words);
    Ok(run(&mut command, None, Duration::from_secs(90))?.checked()?.stdout)
}

#[test]
fn the_report_fits_a_phone_and_fetches_nothing() -> Result<()> {
    let test = "the_report_fits_a_phone_and_fetches_nothing";
    if !root_for(test) {
        return Ok(());
    }
    let Some(root) = browser(test) else { return Ok(()) };
    let site = Site::new(3)?;
    let long = format!("vm:{}", "a-long-name-".repeat(9));
    for holder in ["vm:one", &long, "vm:three"] {
        site.quilt.cli(&["lease", "acquire", "--holder", holder, "--count", "1"])?.checked()?;
    }
    let request = site.join("request.json");
    fs::write(&request, r#"{"gpu_count": 1}"#).unwrap();
    let refused = site.quilt.cli(&["contract", "prepare", "--request", &request.display().to_string()])?;
    assert!(!refused.ok());
    site.quilt.cli(&["lease", "release", "--holder", "vm:one"])?.checked()?;
    let page = site.join("report.html");
    site.quilt.cli(&["report", "--output", &page.display().to_string()])?.checked()?;
    let records = site.quilt.audit().len();
    let text = fs::read_to_string(&page).unwrap();
    assert!(text.contains("CAPACITY_FULL"));

    // A folder of its own in the browser's root, so that two runs are not in each other's way.
    let place = format!("/tmp/report-{}", std::process::id());
    let inside = root.join(place.trim_start_matches('/'));
    fs::create_dir_all(&inside).unwrap();
    // The page's own policy keeps every script from running, a test's too.
    let probed = text.replace("default-src 'none'", "script-src 'unsafe-inline'").replace("</body>", PROBE);
    fs::write(inside.join("page.html"), &text).unwrap();
    fs::write(inside.join("probed.html"), probed).unwrap();
    for width in [390, 1280] {
        let window = format!("--window-size={width},900");
        let dom = look(&root, &[&window, "--dump-dom", &format!("file://{place}/probed.html")])?;
        let seen = dom.split("data-seen=\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap_or_default();
        let seen: Value = serde_json::from_str(&seen.replace("&quot;", "\"")).unwrap_or_default();
        assert_eq!(seen["window"], width, "{seen}");
        assert!(seen["wide"].as_u64() <= Some(width), "wider than the window: {seen}");
        assert_eq!((&seen["rows"], &seen["refusals"]), (&Value::from(records), &Value::from(1)), "{seen}");
        let shot = format!("--screenshot={place}/{width}.png");
        let log = format!("--log-net-log={place}/net-{width}.json");
        look(&root, &[&window, &shot, &log, &format!("file://{place}/page.html")])?;
        let log = fs::read_to_string(inside.join(format!("net-{width}.json"))).unwrap();
        let asked = log.matches("\"url\":\"").count();
        assert!(!log.contains(&format!("{place}/style")) && !log.contains("\"url\":\"http"), "{asked} requests");
        if let Some(keep) = std::env::var_os("QUILT_KEEP_SHOTS") {
            fs::copy(inside.join(format!("{width}.png")), Path::new(&keep).join(format!("report-{width}.png")))
                .unwrap();
        }
    }
    fs::remove_dir_all(&inside).unwrap();
    Ok(())
}
