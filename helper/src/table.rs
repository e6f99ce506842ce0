//! Plain tables for people: columns padded to their widest cell, one line a row. Machines use `--format json`.

/// The rows under a heading; nothing but the heading when there are none.
pub(crate) fn render<const N: usize>(heading: [&str; N], rows: &[[String; N]]) -> String {
    let cell = |text: &str| if text.is_empty() { "-".to_owned() } else { one_line(text) };
    let lines: Vec<Vec<String>> = std::iter::once(heading.map(cell).to_vec())
        .chain(rows.iter().map(|row| row.iter().map(|text| cell(text)).collect()))
        .collect();
    let widths: Vec<usize> = (0..N)
        .map(|column| {
            lines.iter().filter_map(|line| line.get(column)).map(|text| text.chars().count()).max().unwrap_or(0)
        })
        .collect();
    let mut out = String::new();
    for line in &lines {
        let padded: Vec<String> = line.iter().zip(&widths).map(|(text, width)| format!("{text:width$}")).collect();
        out.push_str(padded.join("  ").trim_end());
        out.push('\n');
    }
    out
}

/// Names come from tenants too; a terminal must not obey them.
pub(crate) fn one_line(text: &str) -> String {
    if text.chars().any(char::is_control) { text.escape_debug().to_string() } else { text.to_owned() }
}

#[cfg(test)]
mod tests {
    #[test]
    fn columns_line_up_and_controls_are_shown() {
        let rows = [["nvidia0".to_owned(), String::new()], ["é\u{1b}[2J".to_owned(), "x".to_owned()]];
        assert_eq!(super::render(["NAME", "WHY"], &rows), "NAME        WHY\nnvidia0     -\né\\u{1b}[2J  x\n");
        assert_eq!(super::render(["A"], &[]), "A\n");
    }
}
