//! What people and programs read: tables as wide as the terminal, JSON, and lines about progress. A reader that is gone is
//! an error like others, and no panic.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use comfy_table::presets::NOTHING;
use comfy_table::{ColumnConstraint, ContentArrangement, Table, TableComponent};
use serde::Serialize;

use super::Result;

/// Narrower than this nothing can be read anyway.
const WIDTH_MIN: u16 = 40;
/// Between two words about progress.
const PROGRESS_EVERY: Duration = Duration::from_millis(200);

/// Whether people or programs are to read what a command finds.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub(super) struct Reader {
    /// Print JSON for programs: times in RFC 3339, nothing cut off
    #[arg(long, global = true, help_heading = "Output")]
    pub(super) json: bool,
}

impl Reader {
    /// Says it: to programs all of it, to people in these words.
    pub(super) fn tell(self, all: &impl Serialize, words: impl FnOnce() -> String) -> Result<()> {
        match self.json {
            true => text(&serde_json::to_string_pretty(all).map_err(std::io::Error::from)?),
            false => text(words().trim_end()),
        }
    }
}

/// Says something, and ends the line.
pub(super) fn text(text: &str) -> Result<()> {
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    stdout.write_all(b"\n")?;
    Ok(stdout.flush()?)
}

/// Text of others for a terminal: what would move the cursor, or worse, is shown as what it is.
pub(super) fn tamed(text: &str) -> String {
    let tame = |letter: char| match letter.is_control() {
        true => letter.escape_default().to_string(),
        false => letter.to_string(),
    };
    text.chars().map(tame).collect()
}

/// Says something as it is.
pub(super) fn bytes(bytes: &[u8]) -> Result<()> {
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(bytes)?;
    Ok(stdout.flush()?)
}

/// Says something beside the output. Nobody may read it.
pub(super) fn complain(sentence: &str) {
    drop(writeln!(std::io::stderr().lock(), "{sentence}"));
}

/// How wide the reader's lines are: the terminal's, or what `COLUMNS` says. Who reads by a pipe wraps for themselves.
fn width() -> Option<u16> {
    let wanted = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
    let is_terminal = std::io::stdout().is_terminal();
    let wide = || terminal_size::terminal_size().filter(|_| is_terminal).map(|(width, _)| width.0);
    wanted.or_else(wide).map(|width| width.max(WIDTH_MIN))
}

/// An empty table with these heads. The columns with these numbers are never broken into lines.
pub(super) fn table(heads: &[&str], whole: &[usize]) -> Table {
    let mut table = plain_table();
    table.set_header(heads.iter().copied());
    for (n, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        if whole.contains(&n) {
            column.set_constraint(ColumnConstraint::ContentWidth);
        }
    }
    table
}

/// Names, each with what it stands for, as a table without heads.
pub(super) fn facts(facts: impl IntoIterator<Item = (&'static str, String)>) -> String {
    let mut table = plain_table();
    table.add_rows(facts.into_iter().map(|(name, fact)| [name.to_owned(), fact]));
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    if let Some(names) = table.column_mut(0) {
        names.set_padding((2, 2)).set_constraint(ColumnConstraint::ContentWidth);
    }
    drawn(&table)
}

/// Only a line below the heads.
fn plain_table() -> Table {
    let mut table = Table::new();
    table.load_preset(NOTHING);
    for line in [TableComponent::HeaderLines, TableComponent::MiddleHeaderIntersections] {
        table.set_style(line, '─');
    }
    match width() {
        Some(width) => table.set_content_arrangement(ContentArrangement::Dynamic).set_width(width),
        None => table.set_content_arrangement(ContentArrangement::Disabled),
    };
    table
}

/// The text of a table, without the blanks at the ends of its lines.
pub(super) fn drawn(table: &Table) -> String {
    table.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
}

/// Breaks text into lines of the reader's width, each after this indent.
pub(super) fn wrapped(text: &str, first: &str, indent: &str) -> String {
    let width = width().map_or(usize::MAX, usize::from);
    let mut lines = Vec::new();
    let mut line = first.to_owned();
    let mut is_begun = false;
    for word in text.split_whitespace() {
        if is_begun && line.chars().count() + 1 + word.chars().count() > width {
            lines.push(std::mem::replace(&mut line, indent.to_owned()));
            is_begun = false;
        }
        if is_begun {
            line.push(' ');
        }
        line.push_str(word);
        is_begun = true;
    }
    lines.push(line);
    lines.join("\n") + "\n"
}

/// A number with its thousands apart, as people read it.
pub(super) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (n, digit) in digits.chars().enumerate() {
        if n > 0 && (digits.len() - n).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A line on a terminal that says how far something is.
pub(super) struct Progress {
    said_at: Option<Instant>,
    is_terminal: bool,
}

impl Progress {
    /// Nothing is said before it has taken a moment.
    pub(super) fn new() -> Self {
        Self { said_at: Some(Instant::now()), is_terminal: std::io::stderr().is_terminal() }
    }

    /// It is so far.
    pub(super) fn at(&mut self, words: impl FnOnce() -> String) {
        let is_due = self.said_at.is_none_or(|at| at.elapsed() >= PROGRESS_EVERY);
        if self.is_terminal && is_due {
            self.said_at = Some(Instant::now());
            let mut stderr = std::io::stderr().lock();
            drop(write!(stderr, "\r\x1b[K{}", words()).and_then(|()| stderr.flush()));
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.is_terminal {
            drop(write!(std::io::stderr().lock(), "\r\x1b[K"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_does_not_reach_the_terminal() {
        assert_eq!(tamed("a\u{1b}[31m \u{9b}31m ü"), "a\\u{1b}[31m \\u{9b}31m ü");
    }

    #[test]
    fn numbers_have_their_thousands_apart() {
        let shown = [0, 999, 1000, 1_234_567].map(grouped);
        assert_eq!(shown, ["0", "999", "1,000", "1,234,567"]);
    }
}
