//! The commands of the documentation, as they stand there.
//!
//! A fenced block of `console` has commands after `# ` (as root) and `$ `, and between them what they print; one of
//! `sh` has commands alone. `run` behind the language says that a test runs the block as it is, with `job=NAME`
//! beside a job of that kind, and that it ends with the code of `exit=CODE` (0 without it).

use std::{
    fs,
    path::{Path, PathBuf},
};

/// A fenced block with commands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// In its file, from 1: where the block begins.
    pub line: usize,
    /// Whether it is to be run.
    pub is_run: bool,
    pub job: Option<String>,
    pub exit_code: i32,
    pub commands: Vec<String>,
}

/// The files for users: README, docs and what stands beside them.
#[must_use]
pub fn documents() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut found = Vec::new();
    for folder in ["", "docs", "docs/security"] {
        for entry in fs::read_dir(root.join(folder)).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.extension().is_some_and(|extension| extension == "md") {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// The blocks with commands of a file's text.
#[must_use]
pub fn blocks(text: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut lines = text.lines().enumerate();
    while let Some((at, line)) = lines.next() {
        let Some(info) = line.trim_start().strip_prefix("```") else { continue };
        let indent = line.len() - line.trim_start().len();
        let inside: Vec<&str> = lines
            .by_ref()
            .map(|(_, line)| line.get(indent..).unwrap_or(""))
            .take_while(|line| !line.starts_with("```"))
            .collect();
        let mut words = info.split_whitespace();
        let language = words.next().unwrap_or_default();
        if !matches!(language, "console" | "sh") {
            continue;
        }
        let words: Vec<&str> = words.collect();
        let value = |key: &str| words.iter().find_map(|word| word.strip_prefix(key)?.strip_prefix('='));
        blocks.push(Block {
            line: at + 1,
            is_run: words.contains(&"run"),
            job: value("job").map(str::to_owned),
            exit_code: value("exit").and_then(|code| code.parse().ok()).unwrap_or(0),
            commands: commands(language, &inside),
        });
    }
    blocks
}

/// A command can go on in the next line, after a backslash.
fn commands(language: &str, lines: &[&str]) -> Vec<String> {
    let mut commands: Vec<String> = Vec::new();
    let mut goes_on = false;
    for line in lines {
        let begins = match language {
            "console" => line.strip_prefix("# ").or_else(|| line.strip_prefix("$ ")),
            _ => Some(*line).filter(|line| !line.is_empty() && !line.starts_with('#')),
        };
        match (commands.last_mut(), begins) {
            (Some(command), _) if goes_on => {
                command.push('\n');
                command.push_str(line);
            }
            (_, Some(command)) => commands.push(command.to_owned()),
            _ => continue,
        }
        goes_on = line.ends_with('\\');
    }
    commands
}

/// The arguments of each call of `ncclflow` in a line of shell. What the shell would put in (`$PIDS`, `$(…)`) is 1.
/// Variables before it are options: `NCCLFLOW_LEVEL=api` is `--level api`.
#[must_use]
pub fn calls(command: &str) -> Vec<Vec<String>> {
    words(command).into_iter().filter_map(call).collect()
}

fn call(words: Vec<String>) -> Option<Vec<String>> {
    let mut options = Vec::new();
    let mut words = words.into_iter().skip_while(|word| word == "sudo" || word == "-E").peekable();
    while let Some((name, value)) = words.peek().and_then(|word| word.split_once('=')) {
        let option = name.strip_prefix("NCCLFLOW_")?;
        options.push(format!("--{}", option.to_lowercase().replace('_', "-")));
        options.push(value.to_owned());
        words.next();
    }
    if words.next()? != "ncclflow" {
        return None;
    }
    Some(words.chain(options).collect())
}

/// The words of each simple command.
fn words(command: &str) -> Vec<Vec<String>> {
    let mut all = vec![Vec::new()];
    let mut chars = command.chars().peekable();
    let mut word: Option<String> = None;
    let mut is_target = false;
    let end = |word: &mut Option<String>, is_target: &mut bool, all: &mut Vec<Vec<String>>| {
        let Some(word) = word.take() else { return };
        if !std::mem::take(is_target)
            && let Some(last) = all.last_mut()
        {
            last.push(word);
        }
    };
    while let Some(c) = chars.next() {
        match c {
            '\'' | '"' => {
                let text: String = chars.by_ref().take_while(|inside| *inside != c).collect();
                word.get_or_insert_default().push_str(&text);
            }
            '\\' => {
                if let Some(next) = chars.next().filter(|next| *next != '\n') {
                    word.get_or_insert_default().push(next);
                }
            }
            '$' => {
                let close = chars
                    .peek()
                    .and_then(|next| [('(', ')'), ('{', '}')].iter().find(|(open, _)| open == next));
                if let Some((_, close)) = close {
                    chars.by_ref().find(|inside| inside == close);
                } else {
                    while chars.next_if(|next| next.is_alphanumeric() || *next == '_').is_some() {}
                }
                word.get_or_insert_default().push('1');
            }
            '#' if word.is_none() => break,
            '|' | ';' | '&' | '\n' => {
                end(&mut word, &mut is_target, &mut all);
                is_target = false;
                all.push(Vec::new());
            }
            '>' | '<' => {
                // A number before it is a descriptor's.
                word = word.filter(|word| !word.chars().all(|c| c.is_ascii_digit()));
                end(&mut word, &mut is_target, &mut all);
                is_target = true;
            }
            c if c.is_whitespace() => end(&mut word, &mut is_target, &mut all),
            c => word.get_or_insert_default().push(c),
        }
    }
    end(&mut word, &mut is_target, &mut all);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
Text
```console run job=hang exit=3
# ncclflow dump -p $PIDS \\
    --json > host.json
communicator 0x1: STUCK
$ ncclflow check a b | head
```
- In a list:
  ```sh
  # a remark
  PIDS=$(pgrep -d, -f train.py)
  ```
```text
# no command
```
";

    #[test]
    fn blocks_have_their_commands_and_say_how_they_are_run() {
        let found = blocks(TEXT);
        let [hang, list] = &*found else { panic!("{found:?}") };
        assert_eq!((hang.line, hang.is_run, hang.job.as_deref(), hang.exit_code), (2, true, Some("hang"), 3));
        assert_eq!(hang.commands.len(), 2);
        assert_eq!(
            (list.is_run, &*list.commands),
            (false, &["PIDS=$(pgrep -d, -f train.py)".to_owned()][..])
        );
        assert_eq!(calls(&hang.commands[0]), [["dump", "-p", "1", "--json"]]);
        assert_eq!(calls(&hang.commands[1]), [["check", "a", "b"]]);
    }

    #[test]
    fn calls_are_found_as_a_shell_finds_them() {
        let call = |line| calls(line).into_iter().map(|words| words.join(" ")).collect::<Vec<_>>();
        assert_eq!(call("sudo -E ncclflow doctor # can this host trace?"), ["doctor"]);
        assert_eq!(call("ncclflow record -p 1 2>err & sleep 2; ncclflow ps"), ["record -p 1", "ps"]);
        assert_eq!(
            call("ncclflow stacks t --kernel-name 'nccl DevKernel%' | x"),
            ["stacks t --kernel-name nccl DevKernel%"]
        );
        assert_eq!(
            call("NCCLFLOW_LEVEL=api NCCLFLOW_MAX_SIZE=20G ncclflow record"),
            ["record --level api --max-size 20G"]
        );
        assert_eq!(call("docker run ncclflow top --all"), [""; 0]);
        assert_eq!(call("ncclflow dump -p $(pgrep -d, -f x) --json > ${A}.json"), ["dump -p 1 --json"]);
    }
}
