//! What must hold at the end: a table, and one word.

/// What came of one promise.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Kept,
    Broken,
    /// It could not be judged here.
    Unknown,
}

#[derive(Debug)]
struct Check {
    what: String,
    found: String,
    wanted: String,
    outcome: Outcome,
}

/// All that is promised.
#[derive(Debug, Default)]
pub(crate) struct Checks(Vec<Check>);

#[expect(clippy::needless_pass_by_value, reason = "what is shown is made for it")]
impl Checks {
    /// `wanted` is what `found` must be, for people; `holds` says whether it is.
    pub(crate) fn add(&mut self, what: &str, found: impl ToString, wanted: impl ToString, holds: bool) {
        let outcome = if holds { Outcome::Kept } else { Outcome::Broken };
        self.push(what, &found, &wanted, outcome);
    }

    /// Something that cannot be told on this machine, and why.
    pub(crate) fn unknown(&mut self, what: &str, found: impl ToString, why: impl ToString) {
        self.push(what, &found, &why, Outcome::Unknown);
    }

    /// A figure that nothing is promised of.
    pub(crate) fn tell(&mut self, what: &str, found: impl ToString) {
        self.push(what, &found, &"", Outcome::Kept);
    }

    fn push(&mut self, what: &str, found: &dyn ToString, wanted: &dyn ToString, outcome: Outcome) {
        let (what, found, wanted) = (what.to_owned(), found.to_string(), wanted.to_string());
        self.0.push(Check { what, found, wanted, outcome });
    }

    /// Prints the table and PASSED or FAILED; gives whether nothing is broken.
    pub(crate) fn print(&self) -> bool {
        let width = self.0.iter().map(|check| check.what.chars().count()).max().unwrap_or(0);
        println!();
        for check in &self.0 {
            let mark = match check.outcome {
                Outcome::Kept if check.wanted.is_empty() => "",
                Outcome::Kept => "ok",
                Outcome::Broken => "BROKEN",
                Outcome::Unknown => "not judged",
            };
            let wanted =
                if check.wanted.is_empty() { String::new() } else { format!("  ({})", check.wanted) };
            println!("{:width$}  {mark:10}  {}{wanted}", check.what, check.found);
        }
        let broken = self.0.iter().filter(|check| check.outcome == Outcome::Broken).count();
        println!("{}", if broken == 0 { "PASSED".to_owned() } else { format!("FAILED: {broken} broken") });
        broken == 0
    }
}
