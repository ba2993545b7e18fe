//! Names of slices: those that are asked for, and those that are the same.

use std::{borrow::Cow, collections::HashMap, rc::Rc};

use anyhow::{Result, bail};
use memchr::memmem;

/// Most bytes of different names. A training's trace has some hundred KB.
const MAX_BYTES: usize = 256 << 20;

/// Number of a name that is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct NameId(pub(super) u32);

/// Table that keeps each name once.
#[derive(Debug, Default)]
pub(super) struct Names {
    ids: HashMap<Rc<str>, NameId, foldhash::quality::RandomState>,
    texts: Vec<Rc<str>>,
    bytes: usize,
}

impl Names {
    pub(super) fn id(&mut self, name: &str) -> Result<NameId> {
        if let Some(id) = self.ids.get(name) {
            return Ok(*id);
        }
        self.bytes += name.len();
        let Some(number) = u32::try_from(self.texts.len()).ok().filter(|_| self.bytes <= MAX_BYTES) else {
            bail!("its slices have more than {} MiB of different names: not read further", MAX_BYTES >> 20);
        };
        let text: Rc<str> = name.into();
        self.texts.push(Rc::clone(&text));
        self.ids.insert(text, NameId(number));
        Ok(NameId(number))
    }

    /// Returns all names, by their numbers.
    pub(super) fn texts(&self) -> Vec<Box<str>> {
        self.texts.iter().map(|text| Box::from(&**text)).collect()
    }

    pub(super) fn text(&self, id: NameId) -> &str {
        self.texts.get(id.0 as usize).map_or("", |text| text)
    }
}

/// Returns the part of a name by which equal frames are found: without the addresses of objects, and without
/// the digits at its end, which number layers and steps.
pub(super) fn frame_name(name: &str) -> Cow<'_, str> {
    match without_addresses(name) {
        Cow::Borrowed(name) => Cow::Borrowed(name.trim_end_matches(|char: char| char.is_ascii_digit())),
        Cow::Owned(mut name) => {
            name.truncate(name.trim_end_matches(|char: char| char.is_ascii_digit()).len());
            Cow::Owned(name)
        }
    }
}

/// Removes ` at 0x7f…`, by which Python shows where an object is.
fn without_addresses(name: &str) -> Cow<'_, str> {
    const AT: &str = " at 0x";
    let mut kept = String::new();
    let mut rest = name;
    while let Some(at) = memmem::find(rest.as_bytes(), AT.as_bytes()) {
        let after = &rest[at + AT.len()..];
        let digits = after.bytes().take_while(u8::is_ascii_hexdigit).count();
        let cut = if digits > 0 { at } else { at + AT.len() };
        kept.push_str(&rest[..cut]);
        rest = &after[digits..];
    }
    if rest.len() == name.len() {
        return Cow::Borrowed(name);
    }
    kept.push_str(rest);
    Cow::Owned(kept)
}

/// Names that are asked for: a single one or, with a `%`, all that match, as SQL's LIKE has it in SQLite: `%`
/// is any text, `_` any character, and ASCII letters of both cases are the same.
#[derive(Clone, Debug)]
pub struct Pattern {
    text: String,
}

impl Pattern {
    pub fn new(text: &str) -> Self {
        Self { text: text.to_owned() }
    }

    pub fn matches(&self, name: &str) -> bool {
        if self.text.contains('%') { is_like(name, &self.text) } else { self.text == name }
    }
}

/// Matches in the time of each character of the pattern at each of the name, at most.
fn is_like(name: &str, pattern: &str) -> bool {
    let (mut name, mut pattern) = (name.chars(), pattern.chars());
    // Point to go back to if the text after the last `%` does not fit: then `%` takes one character more.
    let mut retry: Option<(std::str::Chars<'_>, std::str::Chars<'_>)> = None;
    loop {
        let (mut next_name, mut next_pattern) = (name.clone(), pattern.clone());
        let fits = match (next_pattern.next(), next_name.next()) {
            (Some('%'), _) => {
                pattern = next_pattern;
                retry = Some((name.clone(), pattern.clone()));
                continue;
            }
            (None, None) => return true,
            (Some('_'), Some(_)) => true,
            (Some(wanted), Some(char)) => wanted.eq_ignore_ascii_case(&char),
            (None, Some(_)) | (Some(_), None) => false,
        };
        if fits {
            (name, pattern) = (next_name, next_pattern);
            continue;
        }
        let Some((under, after)) = &mut retry else { return false };
        if under.next().is_none() {
            return false;
        }
        (name, pattern) = (under.clone(), after.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_at_the_end_and_addresses_are_no_part_of_a_name() {
        for (name, frame) in [
            ("nn.Module: Linear_12", "nn.Module: Linear_"),
            ("train.py(41): load", "train.py(41): load"),
            ("<built-in method f of T1 object at 0x7f08819b3320>", "<built-in method f of T1 object>"),
            ("<lambda at 0xAB in f at 0x12> x at 0xg at 0x1", "<lambda in f> x at 0xg"),
            ("at 0x12", "at 0x"),
            ("4096", ""),
            ("é at 0x1é9", "éé"),
        ] {
            assert_eq!(frame_name(name), frame);
        }
    }

    #[test]
    fn patterns_are_those_of_sqlite() {
        let like = |pattern: &str, name: &str| Pattern::new(pattern).matches(name);
        assert!(like("a_b", "a_b") && !like("a_b", "axb") && !like("a_b", "A_B"));
        assert!(
            like("%", "") && like("%%", "x") && like("a%", "Abc") && like("%C", "abc") && like("a_%", "axb")
        );
        assert!(like("%ab%ab", "xababab") && like("%(%): f_rward%", "m.py(3): forward_batch"));
        assert!(!like("a%", "ba") && !like("%a_", "a") && !like("É%", "é") && like("É%", "É1"));
    }

    #[test]
    fn a_pattern_of_many_parts_ends_soon() {
        let pattern = "%a".repeat(200);
        assert!(!Pattern::new(&format!("{pattern}b")).matches(&"a".repeat(5000)));
    }

    #[test]
    fn names_are_kept_once_and_bounded() {
        let mut names = Names::default();
        let (a, b) = (names.id("a").unwrap(), names.id("b").unwrap());
        assert_eq!((names.id("a").unwrap(), names.text(a), names.text(b)), (a, "a", "b"));
        names.bytes = MAX_BYTES;
        assert!(names.id("a").is_ok());
        assert!(names.id("c").unwrap_err().to_string().contains("256 MiB"));
    }
}
