//! `isotherm man`: man pages, and the same text as Markdown for the book, made of clap's definitions.
//!
//! `clap_mangen` writes the man pages. `clap-markdown` (0.1.5) is not used for Markdown. It writes one page without the
//! headings of options, and copies help as it is. `<PID>` then becomes an HTML tag that no browser shows, and the lines
//! of examples become one paragraph. Here text is escaped, and usage, examples and exit codes stay line by line.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use clap::builder::StyledStr;
use clap::{Arg, ArgAction, Command};

/// Write a page of reference for each subcommand: man pages, or Markdown for the book.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  isotherm man --out /usr/local/share/man/man1
  isotherm man --format markdown --out commands")]
pub(crate) struct Args {
    /// Write to this folder, which is made if it does not exist.
    #[arg(long, value_name = "FOLDER")]
    out: std::path::PathBuf,

    /// Write pages of this format.
    #[arg(long, value_enum, default_value_t = PageFormat::Man)]
    format: PageFormat,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum PageFormat {
    /// `isotherm.1`, and `isotherm-NAME.1` for each subcommand
    Man,
    /// `isotherm.md`, and `NAME.md` for each subcommand with those below it
    Markdown,
}

/// Writes pages about `command`, but not about subcommands that help does not list.
pub(crate) fn run(args: &Args, command: Command) -> anyhow::Result<ExitCode> {
    let folder = &args.out;
    fs::create_dir_all(folder)
        .and_then(|()| match args.format {
            PageFormat::Man => clap_mangen::generate_to(command, folder),
            PageFormat::Markdown => write_markdown(command, folder),
        })
        .with_context(|| format!("cannot write pages into {}", folder.display()))?;
    Ok(ExitCode::SUCCESS)
}

fn write_markdown(mut command: Command, folder: &Path) -> std::io::Result<()> {
    // This adds clap's own arguments, and each subcommand's whole name.
    command.build();
    fs::write(folder.join("isotherm.md"), overview(&command))?;
    for subcommand in listed(&command) {
        let mut page = String::new();
        add_command(&mut page, subcommand, 1);
        fs::write(folder.join(format!("{}.md", subcommand.get_name())), page)?;
    }
    Ok(())
}

/// Returns the subcommands that help lists, except `help` itself.
fn listed(command: &Command) -> impl Iterator<Item = &Command> {
    let all = command.get_subcommands();
    all.filter(|subcommand| !subcommand.is_hide_set() && subcommand.get_name() != "help")
}

fn overview(command: &Command) -> String {
    let mut page = format!("# {}\n\n", command.get_name());
    add_text(&mut page, command.get_about());
    let _ = writeln!(page, "| command | |\n|---|---|");
    for subcommand in listed(command) {
        let name = subcommand.get_name();
        let about = subcommand.get_about().map(ToString::to_string);
        let about = escaped(about.unwrap_or_default().trim()).replace('\n', " ");
        let _ = writeln!(page, "| [`{name}`]({name}.md) | {about} |");
    }
    page
}

/// Adds a section for `command`, and one for each subcommand, a level below.
fn add_command(page: &mut String, command: &Command, level: usize) {
    let name = command.get_bin_name().unwrap_or(command.get_name());
    let _ = writeln!(page, "{} {name}\n", "#".repeat(level.min(6)));
    let about = command.get_long_about().or_else(|| command.get_about());
    add_text(page, about);
    let usage = command.clone().render_usage().to_string();
    let usage = usage.strip_prefix("Usage: ").unwrap_or(&usage);
    add_block(page, usage);
    for (heading, arguments) in by_heading(command) {
        let _ = writeln!(page, "**{}**\n", escaped(heading));
        for argument in arguments {
            add_argument(page, argument);
        }
        page.push('\n');
    }
    let after = command
        .get_after_long_help()
        .or_else(|| command.get_after_help());
    if let Some(after) = after {
        add_block(page, &after.to_string());
    }
    for subcommand in listed(command) {
        add_command(page, subcommand, level + 1);
    }
}

/// Returns the arguments that help lists, in its order, under its headings.
fn by_heading(command: &Command) -> Vec<(&str, Vec<&Arg>)> {
    let mut sections: Vec<(&str, Vec<&Arg>)> = Vec::new();
    for argument in command.get_arguments() {
        let is_help = matches!(
            argument.get_action(),
            ArgAction::Help | ArgAction::HelpShort | ArgAction::HelpLong | ArgAction::Version
        );
        if argument.is_hide_set() || is_help {
            continue;
        }
        let heading = argument.get_help_heading().unwrap_or("Options");
        match sections.iter_mut().find(|(name, _)| *name == heading) {
            Some((_, arguments)) => arguments.push(argument),
            None => sections.push((heading, vec![argument])),
        }
    }
    sections
}

fn add_argument(page: &mut String, argument: &Arg) {
    let mut names: Vec<String> = Vec::new();
    names.extend(argument.get_short().map(|short| format!("`-{short}`")));
    names.extend(argument.get_long().map(|long| format!("`--{long}`")));
    let aliases = argument.get_visible_aliases().unwrap_or_default();
    names.extend(aliases.iter().map(|alias| format!("`--{alias}`")));
    let mut line = format!("- {}", names.join(", "));
    let takes_value = argument.get_action().takes_values();
    if takes_value || names.is_empty() {
        let values = argument.get_value_names().unwrap_or_default();
        let values: Vec<&str> = values.iter().map(AsRef::as_ref).collect();
        let blank = if names.is_empty() { "" } else { " " };
        let _ = write!(line, "{blank}`{}`", values.join(" "));
    }
    let help = argument.get_long_help().or_else(|| argument.get_help());
    let help = help.map(ToString::to_string).unwrap_or_default();
    let _ = write!(line, ": {}", escaped(help.trim()));
    let defaults = argument.get_default_values();
    if takes_value && !defaults.is_empty() && !argument.is_hide_default_value_set() {
        let defaults = defaults.iter().map(|value| value.to_string_lossy());
        let defaults = defaults.collect::<Vec<_>>().join(" ");
        let _ = write!(line, " (default: `{defaults}`)");
    }
    // Further lines and paragraphs still belong to the item.
    let _ = writeln!(page, "{}", line.replace('\n', "\n  "));
    if !takes_value || argument.is_hide_possible_values_set() {
        return;
    }
    for value in argument.get_possible_values() {
        let help = value.get_help().map(ToString::to_string);
        let help = help.map(|help| format!(": {}", escaped(help.trim())));
        let help = help.unwrap_or_default();
        let _ = writeln!(page, "  - `{}`{help}", value.get_name());
    }
}

fn add_text(page: &mut String, text: Option<&StyledStr>) {
    if let Some(text) = text {
        let _ = writeln!(page, "{}\n", escaped(text.to_string().trim()));
    }
}

/// Adds lines as they are printed.
fn add_block(page: &mut String, lines: &str) {
    let _ = writeln!(page, "```text\n{}\n```\n", lines.trim_end());
}

/// Escapes text so that Markdown shows it as it is; text between backticks is already code.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    let is_paired = text.matches('`').count().is_multiple_of(2);
    let mut is_code = false;
    for letter in text.chars() {
        match letter {
            '`' if is_paired => {
                is_code = !is_code;
                escaped.push(letter);
            }
            _ if is_code => escaped.push(letter),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '&' => escaped.push_str("&amp;"),
            '\\' | '`' | '*' | '_' | '[' | ']' | '#' | '|' | '~' | '$' => {
                escaped.push('\\');
                escaped.push(letter);
            }
            _ => escaped.push(letter),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn pages(format: PageFormat) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let args = Args {
            out: folder.path().to_owned(),
            format,
        };
        run(&args, crate::Cli::command()).unwrap();
        folder
    }

    #[test]
    fn each_command_that_help_lists_has_a_page() {
        let (man, markdown) = (pages(PageFormat::Man), pages(PageFormat::Markdown));
        for command in crate::Cli::command().get_subcommands() {
            let name = command.get_name();
            let man = man.path().join(format!("isotherm-{name}.1"));
            let markdown = markdown.path().join(format!("{name}.md"));
            let expected = !command.is_hide_set();
            assert_eq!(man.exists(), expected, "{name}");
            assert_eq!(markdown.exists(), expected, "{name}");
        }
        let simulate = fs::read_to_string(man.path().join("isotherm-simulate.1")).unwrap();
        assert!(simulate.contains("scenario.yaml"), "{simulate}");
    }

    #[test]
    fn a_page_has_options_defaults_values_examples_and_exit_codes() {
        let folder = pages(PageFormat::Markdown);
        let page = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
        let record = page("record.md");
        for part in [
            "# isotherm record\n",
            "- `-p`, `--pid` `PID|NAME`: Watch these running processes",
            " (default: `linux`)\n  - `linux`: Isotherm, on any kernel\n",
            "```text\nisotherm record [OPTIONS] [-- <COMMAND>...]\n```",
            "\n  isotherm record --duration 30s --pid 1234 ",
        ] {
            assert!(record.contains(part), "{part}: {record}");
        }
        let report = page("report.md");
        for part in ["\n## isotherm report heatmap\n", "Exit status: 0 reported"] {
            assert!(report.contains(part), "{report}");
        }
        assert!(page("isotherm.md").contains("| [`record`](record.md) | "));
    }

    #[test]
    fn nothing_in_a_page_is_taken_for_html() {
        let shown = escaped("a <PID>, `<PID>` & a_b");
        assert_eq!(shown, "a &lt;PID&gt;, `<PID>` &amp; a\\_b");
        assert_eq!(escaped("an odd ` and <b>"), "an odd \\` and &lt;b&gt;");
        let folder = pages(PageFormat::Markdown);
        for entry in fs::read_dir(folder.path()).unwrap() {
            let path = entry.unwrap().path();
            let text = fs::read_to_string(&path).unwrap();
            let mut is_block = false;
            for line in text.lines() {
                if line.starts_with("```") {
                    is_block = !is_block;
                } else if !is_block {
                    let text: String = line.split('`').step_by(2).collect();
                    assert!(!text.contains('<'), "{}: {line}", path.display());
                }
            }
        }
    }
}
