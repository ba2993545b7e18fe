//! `cargo xtask make picture`: makes a picture of what a terminal shows, for the README.

use std::{
    fmt::Write as _,
    fs,
    io::{Read as _, stdin},
    path::PathBuf,
};

use anyhow::{Context as _, Result};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  ncclflow dump -p $PIDS --color always | cargo xtask make picture --title 'ncclflow dump' -o docs/images/dump.svg

Colours and bold text of the terminal (SGR) are kept. Where standard input is not a program's own output but was shortened, say so in
the text: a line with … alone.")]
pub(crate) struct Args {
    /// What stands in the window's title
    #[arg(long)]
    title: String,

    /// The SVG file
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let mut text = String::new();
    stdin().read_to_string(&mut text).context("reading the terminal's text")?;
    fs::write(&args.output, svg(&args.title, &text))
        .with_context(|| format!("writing `{}`", args.output.display()))
}

const FONT_SIZE: usize = 14;
/// Width of a character, in tenths of a pixel: fonts with a fixed width have about 0.6 of their size.
const CHARACTER: usize = 84;
const LINE: usize = 20;
const MARGIN: usize = 18;
const TITLE: usize = 34;

/// Part of a line in one style.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Span {
    text: String,
    is_bold: bool,
    color: Option<&'static str>,
}

fn svg(title: &str, text: &str) -> String {
    let lines: Vec<Vec<Span>> = spans(text.trim_end());
    let columns = lines.iter().map(|line| line.iter().map(|span| span.text.chars().count()).sum()).max();
    let width = 2 * MARGIN + columns.unwrap_or(0).max(60) * CHARACTER / 10;
    let height = TITLE + 2 * MARGIN + lines.len() * LINE;
    let mut out = String::new();
    // Writing to a string cannot fail.
    _ = writeln!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" role=\"img\">\n\
         <title>{0}</title>\n\
         <rect width=\"{width}\" height=\"{height}\" rx=\"8\" fill=\"#ffffff\" stroke=\"#d0d7de\"/>\n\
         <path d=\"M0.5 {TITLE}h{1}\" stroke=\"#d0d7de\"/>\n\
         <g fill=\"#d0d7de\"><circle cx=\"20\" cy=\"17\" r=\"5\"/><circle cx=\"37\" cy=\"17\" r=\"5\"/><circle cx=\"54\" cy=\"17\" r=\"5\"/></g>\n\
         <text x=\"{2}\" y=\"22\" text-anchor=\"middle\" font-family=\"sans-serif\" font-size=\"13\" fill=\"#57606a\">{0}</text>\n\
         <g font-family=\"ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace\" font-size=\"{FONT_SIZE}\" fill=\"#1f2328\">",
        escaped(title),
        width - 1,
        width / 2
    );
    for (number, line) in lines.iter().enumerate().filter(|(_, line)| !line.is_empty()) {
        let y = TITLE + MARGIN + number * LINE + FONT_SIZE;
        let length: usize = line.iter().map(|span| span.text.chars().count()).sum();
        // The width of a line does not depend on the reader's font.
        _ = write!(out, "<text x=\"{MARGIN}\" y=\"{y}\" textLength=\"{}\">", length * CHARACTER / 10);
        for span in line {
            let weight = if span.is_bold { " font-weight=\"bold\"" } else { "" };
            let fill = span.color.map(|color| format!(" fill=\"{color}\"")).unwrap_or_default();
            // Blanks at the beginning of a line, and several of them, are there to be seen.
            let text = escaped(&span.text).replace(' ', "\u{a0}");
            _ = write!(out, "<tspan{weight}{fill}>{text}</tspan>");
        }
        out.push_str("</text>\n");
    }
    out.push_str("</g>\n</svg>\n");
    out
}

/// Takes lines apart at the escape sequences that change the style (SGR).
fn spans(text: &str) -> Vec<Vec<Span>> {
    let mut style = Span::default();
    let mut lines = Vec::new();
    for line in text.lines() {
        let mut spans = Vec::new();
        for (number, part) in line.split("\x1b[").enumerate() {
            let text = match part.split_once('m') {
                Some((codes, text)) if number > 0 => {
                    codes.split(';').for_each(|code| style.obey(code));
                    text
                }
                _ => part,
            };
            if !text.is_empty() {
                spans.push(Span { text: text.to_owned(), ..style.clone() });
            }
        }
        lines.push(spans);
    }
    lines
}

impl Span {
    fn obey(&mut self, code: &str) {
        match code {
            "" | "0" => *self = Self::default(),
            "1" => self.is_bold = true,
            "22" => self.is_bold = false,
            "2" | "90" => self.color = Some("#6e7781"),
            "31" | "91" => self.color = Some("#cf222e"),
            "32" | "92" => self.color = Some("#116329"),
            "33" | "93" => self.color = Some("#9a6700"),
            "34" | "94" => self.color = Some("#0969da"),
            "35" | "95" => self.color = Some("#8250df"),
            "36" | "96" => self.color = Some("#1b7c83"),
            "39" => self.color = None,
            _ => {}
        }
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn styles_go_on_until_they_are_reset() {
        let lines = spans("\x1b[1m\x1b[31mbad\nstill\x1b[0m now");
        let red = |text: &str| Span { text: text.to_owned(), is_bold: true, color: Some("#cf222e") };
        let plain = |text: &str| Span { text: text.to_owned(), ..Span::default() };
        assert_eq!(lines, [vec![red("bad")], vec![red("still"), plain(" now")]]);
    }

    #[test]
    fn text_is_no_markup() {
        let picture = svg("a", "x<y & \"z\"");
        assert!(picture.contains("x&lt;y\u{a0}&amp;\u{a0}&quot;z&quot;"), "{picture}");
    }
}
