//! `isotherm damo`: the command that does what a command line of damo's does.

use std::io::Write as _;
use std::process::{Command, ExitCode};

use anyhow::Context as _;
use isotherm_config::damo::{DAMO_CONFIG, DamoTranslation, translate};
use isotherm_config::{ConfigFormat, World, load};
use isotherm_record::quoted;

use crate::flags::{WORLDS, one_of};
use crate::out;

/// File of kdamonds that the printed command reads.
const CONFIG: &str = "kdamonds.json";

/// Say which command does what a command line of damo's does, or run it.
///
/// Knows all commands and options of damo 3.4.3. What Isotherm does not do is refused, with what to use instead. Files of
/// damo's are read as they are.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  isotherm damo record --target_pid 1234
  isotherm damo start --damos_action pageout --damos_access_rate 0% 0% --damos_age 5s max 1234
  isotherm damo --run report wss --range 0 101 25")]
pub(crate) struct Args {
    /// Run the command, not only print it
    #[arg(long)]
    run: bool,
    /// Let the kernel's DAMON watch and act
    #[arg(long, value_parser = one_of(WORLDS), default_value = "linux")]
    world: World,
    /// Print the translation as JSON
    #[arg(long, conflicts_with = "run")]
    json: bool,
    /// Translate these words of damo's
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "ARGS"
    )]
    words: Vec<String>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mut translation = translate(&args.words, args.world == World::Kernel)?;
    if let Some(configuration) = &translation.configuration
        && let Err(problems) = load(&format!("{configuration:#}"), ConfigFormat::Json)
    {
        let refused = |problem| format!("refused by Isotherm: {problem}");
        let refused = problems.into_vec().into_iter().map(refused);
        translation.differences.extend(refused);
    }
    if args.json {
        println!("{}", out::json(&translation)?);
        return Ok(ExitCode::SUCCESS);
    }
    if args.run {
        return execute(&translation);
    }
    for difference in &translation.differences {
        println!("# {difference}");
    }
    if let Some(configuration) = &translation.configuration {
        println!("cat > {CONFIG} <<'END'\n{configuration:#}\nEND");
    }
    let words = translation.command.iter();
    let words = words.map(|word| if word == DAMO_CONFIG { CONFIG } else { word });
    let words: Vec<String> = words.map(quoted).collect();
    println!("isotherm {}", words.join(" "));
    Ok(ExitCode::SUCCESS)
}

/// Runs the translated command in place of this one.
fn execute(translation: &DamoTranslation) -> anyhow::Result<ExitCode> {
    let file = match &translation.configuration {
        None => None,
        Some(configuration) => {
            let mut file =
                tempfile::NamedTempFile::new().context("cannot make a file of kdamonds")?;
            write!(file, "{configuration:#}").context("cannot write a file of kdamonds")?;
            Some(file)
        }
    };
    let own = std::env::current_exe().context("cannot find this program")?;
    let words = translation.command.iter().map(|word| match &file {
        Some(file) if word == DAMO_CONFIG => file.path().as_os_str().to_owned(),
        _ => word.into(),
    });
    let status = Command::new(own).args(words).status();
    let status = status.context("cannot run the translated command")?;
    Ok(ExitCode::from(status.code().map_or(2, |code| code as u8)))
}
