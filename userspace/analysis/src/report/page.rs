//! The file: style, data and scripts in one document.

use std::io::{self, BufWriter, Write};

use anyhow::{Context as _, Result};

use super::data::Data;

/// The document, with a mark for each part that is put into it.
const PAGE: &str = include_str!("../../assets/report/page.html");

/// Style sheets, in the order of the document. Each has the hash of its bytes, by which the document allows
/// it and nothing else (Content-Security-Policy).
const STYLES: &[(&str, &str)] = &[
    (include_str!("../../assets/report/uplot/uPlot.min.css"), env!("NCCLFLOW_REPORT_UPLOT_CSS")),
    (include_str!("../../assets/report/report.css"), env!("NCCLFLOW_REPORT_CSS")),
];

const SCRIPTS: &[(&str, &str)] = &[
    (include_str!("../../assets/report/uplot/uPlot.iife.min.js"), env!("NCCLFLOW_REPORT_UPLOT_JS")),
    (include_str!("../../assets/report/base.js"), env!("NCCLFLOW_REPORT_BASE_JS")),
    (include_str!("../../assets/report/parts.js"), env!("NCCLFLOW_REPORT_PARTS_JS")),
    (include_str!("../../assets/report/topology.js"), env!("NCCLFLOW_REPORT_TOPOLOGY_JS")),
    (include_str!("../../assets/report/matrix.js"), env!("NCCLFLOW_REPORT_MATRIX_JS")),
    (include_str!("../../assets/report/timeline.js"), env!("NCCLFLOW_REPORT_TIMELINE_JS")),
    (include_str!("../../assets/report/tables.js"), env!("NCCLFLOW_REPORT_TABLES_JS")),
    (include_str!("../../assets/report/report.js"), env!("NCCLFLOW_REPORT_JS")),
];

const UPLOT_LICENSE: &str = include_str!("../../assets/report/uplot/LICENSE");

/// Writer that counts its bytes, and escapes in the data what would end a script.
struct Escaped<W: Write> {
    to: W,
    bytes: u64,
    is_data: bool,
}

impl<W: Write> Write for Escaped<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if !self.is_data {
            self.to.write_all(bytes)?;
            self.bytes += bytes.len() as u64;
            return Ok(bytes.len());
        }
        // In JSON, these characters stand in strings only.
        for part in bytes.split_inclusive(|byte| matches!(byte, b'<' | b'>' | b'&')) {
            let (plain, escaped) = match part.split_last() {
                Some((b'<', plain)) => (plain, &b"\\u003c"[..]),
                Some((b'>', plain)) => (plain, &b"\\u003e"[..]),
                Some((b'&', plain)) => (plain, &b"\\u0026"[..]),
                _ => (part, &b""[..]),
            };
            self.to.write_all(plain)?;
            self.to.write_all(escaped)?;
            self.bytes += (plain.len() + escaped.len()) as u64;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

/// Writes the page. Returns its length.
pub(super) fn write(data: &Data, to: &mut dyn Write) -> Result<u64> {
    let mut out = Escaped { to: BufWriter::with_capacity(1 << 20, to), bytes: 0, is_data: false };
    write_parts(data, &mut out).context("writing the report")?;
    Ok(out.bytes)
}

fn write_parts<W: Write>(data: &Data, out: &mut Escaped<W>) -> Result<()> {
    let mut rest = PAGE;
    while let Some((before, after)) = rest.split_once("{{") {
        out.write_all(before.as_bytes())?;
        let (mark, after) = after.split_once("}}").context("the page's marks")?;
        match mark {
            "policy" => write!(
                out,
                "default-src 'none'; style-src {}; script-src {}; base-uri 'none'; form-action 'none'",
                hashes(STYLES),
                hashes(SCRIPTS)
            )?,
            "styles" => {
                for (style, _) in STYLES {
                    write!(out, "<style>{style}</style>")?;
                }
            }
            "scripts" => {
                writeln!(out, "<!-- uPlot:\n{}\n-->", UPLOT_LICENSE.trim())?;
                for (script, _) in SCRIPTS {
                    writeln!(out, "<script>{script}</script>")?;
                }
            }
            "data" => {
                out.is_data = true;
                serde_json::to_writer(flow::text::PlainWriter::of_json(&mut *out), data)?;
                out.is_data = false;
            }
            _ => {}
        }
        rest = after;
    }
    out.write_all(rest.as_bytes())?;
    Ok(out.flush()?)
}

fn hashes(parts: &[(&str, &str)]) -> String {
    parts.iter().map(|(_, hash)| format!("'sha256-{hash}'")).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_cannot_end_its_script_and_reads_the_same() {
        let text = "</script><!-- <script>alert(1)</script> & \u{202e}";
        let mut out = Escaped { to: Vec::new(), bytes: 0, is_data: true };
        serde_json::to_writer(flow::text::PlainWriter::of_json(&mut out), text).unwrap();
        let written = String::from_utf8(out.to.clone()).unwrap();
        assert!(!written.contains(['<', '>', '&', '\u{202e}']), "{written}");
        assert_eq!(serde_json::from_str::<String>(&written).unwrap(), text);
        assert_eq!(out.bytes, out.to.len() as u64);
    }

    #[test]
    fn each_mark_of_the_page_is_filled_once_and_nothing_is_fetched() {
        for mark in ["{{policy}}", "{{styles}}", "{{data}}", "{{scripts}}"] {
            assert_eq!(PAGE.matches(mark).count(), 1, "{mark}");
        }
        assert_eq!(PAGE.matches("{{").count(), 4);
        for (part, _) in STYLES.iter().chain(SCRIPTS) {
            assert!(!part.contains("</script") && !part.contains("</style"));
            assert!(
                !part.contains("fetch(") && !part.contains("XMLHttpRequest") && !part.contains("@import")
            );
        }
    }
}
