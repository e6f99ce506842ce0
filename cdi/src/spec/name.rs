//! Names of vendors, classes and devices, and the qualified name that joins them: `VENDOR/CLASS=DEVICE`.

/// The qualified name of a device of a kind.
#[must_use]
pub fn qualified(kind: &str, device: &str) -> String {
    format!("{kind}={device}")
}

/// The kind and the device that a qualified name is made of.
///
/// # Errors
/// It is not one, in words that say why.
pub fn split(name: &str) -> Result<(&str, &str), String> {
    let form = || format!("{name:?} is not a qualified device name, which is VENDOR/CLASS=DEVICE");
    let (of, device) = name.split_once('=').ok_or_else(form)?;
    if of.is_empty() || device.is_empty() {
        return Err(form());
    }
    kind(of).and_then(|()| self::device(device)).map_err(|why| format!("{}: {why}", form()))?;
    Ok((of, device))
}

/// Whether a kind is one.
pub(crate) fn kind(kind: &str) -> Result<(), String> {
    let (vendor, class) =
        kind.split_once('/').ok_or_else(|| format!("the kind {kind:?} must be VENDOR/CLASS, as nvidia.com/gpu"))?;
    // A prefix and a name as Kubernetes has them.
    part("vendor", vendor, u8::is_ascii_alphabetic, b"_-.", 253)?;
    part("class", class, u8::is_ascii_alphabetic, b"_-.", 63)
}

/// Whether a device's name is one.
pub(crate) fn device(name: &str) -> Result<(), String> {
    part("device name", name, u8::is_ascii_alphanumeric, b"_-.:", usize::MAX)
}

fn part(what: &str, text: &str, first: fn(&u8) -> bool, between: &[u8], most: usize) -> Result<(), String> {
    let wrong = |rule: &str| Err(format!("the {what} {text:?} {rule}"));
    let bytes = text.as_bytes();
    let (Some(start), Some(end)) = (bytes.first(), bytes.last()) else { return wrong("is empty") };
    if bytes.len() > most {
        return wrong(&format!("has more than {most} characters"));
    }
    if !first(start) {
        let letters = if first(&b'0') { "a letter or digit" } else { "a letter" };
        return wrong(&format!("must begin with {letters}"));
    }
    if !end.is_ascii_alphanumeric() {
        return wrong("must end with a letter or digit");
    }
    if !bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || between.contains(byte)) {
        let between = String::from_utf8_lossy(between);
        return wrong(&format!("may have letters, digits and {between} only"));
    }
    Ok(())
}
