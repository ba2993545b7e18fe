//! Names of hosts: lists of them with ranges, and files. A name becomes a word of another program's command
//! line, so it must not look like an option, nor mean anything to a shell.

use std::{collections::HashSet, fmt};

/// Maximum number of hosts that are asked.
pub(super) const MAX_HOSTS: usize = 1 << 14;
/// Longest name of a host, with its user: a DNS name has 253 characters.
const MAX_NAME: usize = 320;

/// Reason why a list of hosts is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NameError {
    Name(String),
    Range(String),
    TooMany,
    None,
}

impl fmt::Display for NameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => write!(
                f,
                "{name:?} is no name of a host: letters, digits, `.`, `-`, `_` and `:`, with `user@` before it \
                 if need be, and no `-` at the beginning"
            ),
            Self::Range(text) => write!(f, "{text:?} is no range of hosts: give one as node[01-16,20]"),
            Self::TooMany => write!(f, "more than {MAX_HOSTS} hosts"),
            Self::None => f.write_str("no host is named"),
        }
    }
}

impl std::error::Error for NameError {}

/// Parses `h1,h2,node[01-16]`. A host that is named twice counts once.
pub fn hosts(list: &str) -> Result<Vec<String>, NameError> {
    let mut all = Names::default();
    all.add_list(list)?;
    all.done()
}

/// Parses a file with a host a line, as MPI, pdsh and DeepSpeed have it: `node1 slots=8`, `node1:8`; what
/// stands behind the name, and behind `#`, does not count.
pub fn hosts_of_file(text: &str) -> Result<Vec<String>, NameError> {
    let mut all = Names::default();
    for line in text.lines() {
        let line = line.split('#').next().unwrap_or_default();
        let Some(word) = line.split_whitespace().next() else { continue };
        // A colon in a name is one of several: the name is an address of IPv6.
        let name = match word.split_once(':') {
            Some((name, slots)) if !slots.is_empty() && slots.bytes().all(|byte| byte.is_ascii_digit()) => {
                name
            }
            _ => word,
        };
        all.add_list(name)?;
    }
    all.done()
}

/// Tells whether a name can be a word of a command.
pub(super) fn is_host(name: &str) -> bool {
    let (user, host) = name.split_once('@').map_or((None, name), |(user, host)| (Some(user), host));
    let is_word = |word: &str, more: &str| {
        word.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_' || more.contains(c))
            && word.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c) || more.contains(c))
    };
    name.len() <= MAX_NAME && user.is_none_or(|user| is_word(user, "")) && is_word(host, ":")
}

#[derive(Default)]
struct Names {
    all: Vec<String>,
    known: HashSet<String>,
}

impl Names {
    fn add_list(&mut self, list: &str) -> Result<(), NameError> {
        for word in split(list) {
            self.expand(String::new(), word.trim(), word.trim())?;
        }
        Ok(())
    }

    /// Adds the names that begin with `head`, and go on as `rest` says.
    fn expand(&mut self, head: String, rest: &str, whole: &str) -> Result<(), NameError> {
        let Some((before, tail)) = rest.split_once('[') else {
            return self.add(head + rest);
        };
        let wrong = || NameError::Range(whole.to_owned());
        let (ranges, after) = tail.split_once(']').ok_or_else(wrong)?;
        for range in ranges.split(',') {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let number = |text: &str| {
                let is_number =
                    (1..=9).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
                is_number.then(|| text.parse::<usize>().ok()).flatten()
            };
            let (from, to) = number(first).zip(number(last)).ok_or_else(wrong)?;
            if to.checked_sub(from).ok_or_else(wrong)? >= MAX_HOSTS {
                return Err(NameError::TooMany);
            }
            for number in from..=to {
                let width = first.len();
                self.expand(format!("{head}{before}{number:0width$}"), after, whole)?;
            }
        }
        Ok(())
    }

    fn add(&mut self, name: String) -> Result<(), NameError> {
        if !is_host(&name) {
            return Err(NameError::Name(name));
        }
        if self.known.insert(name.clone()) {
            if self.all.len() >= MAX_HOSTS {
                return Err(NameError::TooMany);
            }
            self.all.push(name);
        }
        Ok(())
    }

    fn done(self) -> Result<Vec<String>, NameError> {
        if self.all.is_empty() { Err(NameError::None) } else { Ok(self.all) }
    }
}

/// Splits a list at commas and spaces that are not inside brackets.
fn split(list: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0_usize;
    let words = list.split(move |c: char| {
        match c {
            '[' => depth += 1,
            ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth == 0 && (c == ',' || c.is_whitespace())
    });
    words.filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_have_ranges_as_slurm_writes_them() {
        assert_eq!(hosts("b,a, c\nb").unwrap(), ["b", "a", "c"]);
        assert_eq!(hosts("n[08-11,3],gpu").unwrap(), ["n08", "n09", "n10", "n11", "n3", "gpu"]);
        assert_eq!(hosts("r[0-1]n[1-2].x").unwrap(), ["r0n1.x", "r0n2.x", "r1n1.x", "r1n2.x"]);
        assert_eq!(hosts("root@a,fe80::1,::1").unwrap(), ["root@a", "fe80::1", "::1"]);
        assert_eq!(hosts("n[1-16384]").unwrap().len(), MAX_HOSTS);
    }

    #[test]
    fn what_ssh_or_a_shell_would_read_as_something_else_is_no_host() {
        let option = "-oProxyCommand=touch /tmp/x";
        for name in [option, "-v", "a;b", "$(a)", "a`b`", "a|b", "a b'c", "@a", "a@", "-a@b", "a@-b", "a@b@c"]
        {
            assert!(!is_host(name), "{name}");
        }
        assert!(matches!(hosts("a,-v"), Err(NameError::Name(name)) if name == "-v"));
        assert!(matches!(hosts("a,[1-2]-,b;c"), Err(NameError::Name(_))));
        assert!(matches!(hosts("a\u{202e}b"), Err(NameError::Name(_))));
        assert!(!is_host(&"a".repeat(MAX_NAME + 1)));
        for range in ["n[1-", "n[]", "n[2-1]", "n[a-b]", "n[1-2-3]", "n[-1]", "n[99999999999]"] {
            assert!(matches!(hosts(range), Err(NameError::Range(_))), "{range}");
        }
        for many in ["n[0-16384]", "n[0-999999999]", "a[0-999]b[0-999]c[0-999]"] {
            assert_eq!(hosts(many), Err(NameError::TooMany), "{many}");
        }
        assert_eq!(hosts(" , "), Err(NameError::None));
    }

    #[test]
    fn files_have_a_host_a_line() {
        let text = "# the job\nnode1 slots=8\nnode2:4   # two\n\n  node[3-4]\nnode1\nfe80::12\n";
        assert_eq!(hosts_of_file(text).unwrap(), ["node1", "node2", "node3", "node4", "fe80::12"]);
        assert_eq!(hosts_of_file("# none\n"), Err(NameError::None));
        assert!(matches!(hosts_of_file("node1\n-v\n"), Err(NameError::Name(_))));
    }
}
