//! *DAMON: data access monitor*, v24, and its physical memory patches (SeongJae Park, 2021): resident
//! memory, memory used and run time under each configuration, program by program.
//!
//! The inputs are the columns without DAMON (orig, thp), and prcl's resident memory only where that is said
//! ([`Knowledge::Prcl`]). All other results are compared with their published cells.

use std::collections::BTreeMap;

use super::{PublishedComparison, Role};
use crate::experiment::reclaim::{
    Inputs, Knowledge, Program, ReclaimConfiguration, ReclaimOutcome, WINDOW, run,
};

isotherm_engine::named! {
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Metric {
        Rss = "RSS",
        MemoryUsed = "memory used",
        Runtime = "run time",
    }

    fn name;
    all ALL;
}

impl Metric {
    const fn unit(self) -> &'static str {
        match self {
            Self::Rss | Self::MemoryUsed => "KiB",
            Self::Runtime => "s",
        }
    }

    const fn of(self, outcome: &ReclaimOutcome) -> f64 {
        match self {
            Self::Rss => outcome.rss_kib,
            Self::MemoryUsed => outcome.memory_used_kib,
            Self::Runtime => outcome.runtime_s,
        }
    }
}

/// A publication, with its tables by [`Metric::ALL`].
struct Publication {
    name: &'static str,
    tables: [&'static str; 3],
}

const V24: Publication = Publication {
    name: "DAMON v24",
    tables: [
        include_str!("../../../../experiments/published/damon_v24_rss_kib.csv"),
        include_str!("../../../../experiments/published/damon_v24_memused_kib.csv"),
        include_str!("../../../../experiments/published/damon_v24_runtime_seconds.csv"),
    ],
};

const PPRCL: Publication = Publication {
    name: "pprcl",
    tables: [
        include_str!("../../../../experiments/published/pprcl_rss_kib.csv"),
        include_str!("../../../../experiments/published/pprcl_memused_kib.csv"),
        include_str!("../../../../experiments/published/pprcl_runtime_seconds.csv"),
    ],
};

/// Values of a table's column, by program.
type Column = BTreeMap<&'static str, f64>;

impl Publication {
    /// Returns a column without the last rows, which are sums; empty if there is no such column.
    fn column(&self, metric: Metric, name: &str) -> Column {
        let table = self.tables[metric as usize];
        let fields = |line: &'static str| line.split(',').collect::<Vec<_>>();
        let mut lines = table.lines().map(fields);
        let head = lines.next().unwrap_or_default();
        let at = head.iter().position(|field| *field == name);
        let cell = |fields: Vec<&'static str>| Some((fields[0], fields.get(at?)?.parse().ok()?));
        let rows = lines.filter(|fields| fields[0].contains('/'));
        rows.filter_map(cell).collect()
    }
}

fn inputs() -> Vec<(&'static str, Inputs)> {
    let column = |metric, name| V24.column(metric, name);
    let (rss, used) = (
        column(Metric::Rss, "orig"),
        column(Metric::MemoryUsed, "orig"),
    );
    let runtime = column(Metric::Runtime, "orig");
    let (thp_rss, thp_runtime) = (column(Metric::Rss, "thp"), column(Metric::Runtime, "thp"));
    let prcl = column(Metric::Rss, "prcl");
    let of = |(name, kib): (&&'static str, &f64)| {
        let inputs = Inputs {
            rss: kib * 1024.0,
            memory_used: used.get(name)? * 1024.0,
            runtime_s: *runtime.get(name)?,
            huge_waste: thp_rss.get(name)? / kib - 1.0,
            huge_gain: 1.0 - thp_runtime.get(name)? / runtime.get(name)?,
            saved: 1.0 - prcl.get(name)? / kib,
        };
        Some((*name, inputs))
    };
    rss.iter().filter_map(of).collect()
}

/// A run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReclaimRun {
    /// Place among the published programs.
    program: usize,
    /// Place among the configurations.
    configuration: usize,
}

/// All runs of some configurations.
pub struct Evaluation {
    configurations: Vec<ReclaimConfiguration>,
    programs: Vec<(&'static str, Inputs)>,
}

impl Evaluation {
    /// Creates an evaluation of these configurations, `orig` among them.
    pub fn new(configurations: Vec<ReclaimConfiguration>) -> Self {
        Self {
            programs: inputs(),
            configurations,
        }
    }

    /// All runs, those of the largest programs first.
    pub fn runs(&self) -> Vec<ReclaimRun> {
        let mut programs: Vec<usize> = (0..self.programs.len()).collect();
        programs.sort_by(|a, b| self.programs[*b].1.rss.total_cmp(&self.programs[*a].1.rss));
        let runs = programs.into_iter().flat_map(|program| {
            (0..self.configurations.len()).map(move |configuration| ReclaimRun {
                program,
                configuration,
            })
        });
        runs.collect()
    }

    /// The title of a run.
    pub fn title(&self, run: &ReclaimRun) -> String {
        let (program, _) = self.programs[run.program];
        format!(
            "like {program}, {}",
            self.configurations[run.configuration].title
        )
    }

    /// Runs it.
    pub fn make(&self, at: &ReclaimRun) -> ReclaimOutcome {
        let configuration = &self.configurations[at.configuration];
        let program = Program::new(&self.programs[at.program].1, configuration.knowledge);
        run(&program, configuration)
    }

    /// Compares every cell of both publications: orig's values, and each configuration's changes to them.
    pub fn comparisons(&self, runs: &[(ReclaimRun, ReclaimOutcome)]) -> Vec<PublishedComparison> {
        let mut configurations = self.configurations.iter();
        let orig_at = configurations.position(|c| c.name == "orig");
        let mut all = Vec::new();
        for publication in [&V24, &PPRCL] {
            for metric in Metric::ALL {
                let orig = publication.column(metric, "orig");
                for (place, configuration) in self.configurations.iter().enumerate() {
                    let with = publication.column(metric, configuration.name);
                    for (at, (program, inputs)) in self.programs.iter().enumerate() {
                        let of = |wanted: usize| outcome(runs, at, wanted);
                        let (Some(orig), Some(with)) = (orig.get(program), with.get(program))
                        else {
                            continue;
                        };
                        let first = orig_at.and_then(of).map(|o| metric.of(&o));
                        let made = of(place).map(|o| metric.of(&o));
                        let cell = Cell {
                            metric,
                            configuration,
                            inputs,
                            published: (*orig, *with),
                            simulated: first.zip(made),
                        };
                        all.push(cell.comparison(publication.name, program));
                    }
                }
            }
        }
        all
    }
}

fn outcome(
    runs: &[(ReclaimRun, ReclaimOutcome)],
    program: usize,
    configuration: usize,
) -> Option<ReclaimOutcome> {
    let is_it = |(run, _): &&(ReclaimRun, ReclaimOutcome)| {
        run.program == program && run.configuration == configuration
    };
    runs.iter().find(is_it).map(|(_, outcome)| *outcome)
}

/// A cell of a table, with orig's cell of the same row.
struct Cell<'a> {
    metric: Metric,
    configuration: &'a ReclaimConfiguration,
    inputs: &'a Inputs,
    published: (f64, f64),
    simulated: Option<(f64, f64)>,
}

impl Cell<'_> {
    fn comparison(&self, experiment: &'static str, program: &str) -> PublishedComparison {
        let role = self.role();
        let is_orig = self.configuration.name == "orig";
        let shown = |(orig, with): (f64, f64)| {
            if is_orig {
                with
            } else {
                100.0 * (with / orig - 1.0)
            }
        };
        PublishedComparison {
            experiment,
            configuration: self.configuration.title,
            case: program.to_owned(),
            metric: self.metric.name().to_owned(),
            unit: if is_orig {
                self.metric.unit()
            } else {
                "% change"
            },
            simulated: (self.simulated.map(shown)).filter(|_| role != Role::NotModelled),
            published: Some(shown(self.published)),
            role,
        }
    }

    fn role(&self) -> Role {
        let knows_prcl = self.configuration.knowledge == Knowledge::Prcl;
        match (self.configuration.name, self.metric) {
            ("orig", _) => Role::Input,
            // In the simulation huge pages make nothing smaller or slower.
            ("thp", Metric::Rss) if self.inputs.huge_waste <= 0.0 => Role::NotModelled,
            ("thp", Metric::Runtime) if self.inputs.huge_gain <= 0.0 => Role::NotModelled,
            ("thp", Metric::Rss | Metric::Runtime) => Role::Calibrated,
            // The size of the wrapper, or of what huge pages add, was put in.
            ("rec" | "prec" | "thp", Metric::MemoryUsed) => Role::Arithmetic,
            // Clears by physical addresses cost the program nothing here.
            ("prec", Metric::Runtime) => Role::NotModelled,
            ("prcl", Metric::Rss) if knows_prcl => Role::Calibrated,
            _ => Role::Predicted,
        }
    }
}

/// Returns the notes that a reader must know before the numbers.
pub fn notes() -> Vec<String> {
    vec![
        "Inputs, of each program: the columns without DAMON (orig; what huge pages added and gained, thp), and \
         where the heading says \"idle known\", what prcl saved (DAMON v24). Other programs' columns are \
         not used."
            .into(),
        format!(
            "Assumed, the same for all programs: half of the memory idles unless known; when it is used again \
             (evenly by the logarithm, from 5 s to the length of the run); files are read once; memory is \
             filled in the first tenth of the run, 10 s at most; 12.5 MB for the published Python wrapper \
             (\"10-15MB\"); zram compresses to a third. Of runs longer than {:.0} s the rest is taken to go \
             on like the last third of that.",
            WINDOW.as_secs_f64()
        ),
        "ethp by Isotherm: the same scheme as `isotherm run` carries it out: huge pages are made at once, within \
         its bound on waste, and idle ones give back what was never written. The published numbers are of \
         the kernel's DAMON, which advises; first faults and khugepaged go by that. Idle known."
            .into(),
        "Not modelled: phases of programs, the machine's own memory (pprcl reclaims it too: swaptions' memory \
         used is published as -11 MB), what watching by physical addresses costs the program, and programs \
         that huge pages make smaller or slower."
            .into(),
        "A mean error above that of saying \"no change\" has no skill. A repeat differs by some points of run time, \
         too: rec and prec are published from -11 to +12 %."
            .into(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use isotherm_sim::machine::Rules;

    fn configuration(name: &'static str, knowledge: Knowledge) -> ReclaimConfiguration {
        ReclaimConfiguration {
            name,
            title: name,
            thp: false,
            watched: None,
            schemes: Vec::new(),
            rules: Rules::KernelDamon,
            knowledge,
        }
    }

    #[test]
    fn all_published_cells_are_compared() {
        let names = ["orig", "rec", "prec", "thp", "ethp", "prcl", "pprcl"];
        let configurations = names.map(|name| configuration(name, Knowledge::Nothing));
        let all = Evaluation::new(configurations.into()).comparisons(&[]);
        // Three tables of 24 programs: six columns in one publication, three in the other.
        assert_eq!(all.len(), 3 * 24 * (6 + 3));
        let cell = |of: &str| {
            let is_it = |row: &&PublishedComparison| {
                let names = [row.experiment, row.configuration, &row.metric, &row.case];
                names.join(", ") == of
            };
            let found = all.iter().find(is_it).and_then(|row| row.published);
            found.map(|value| (value * 100.0).round() / 100.0)
        };
        let published = [
            ("DAMON v24, orig, RSS, parsec3/canneal", 842_370.6),
            ("DAMON v24, prcl, memory used, splash2x/radiosity", -71.09),
            ("DAMON v24, thp, run time, splash2x/ocean_ncp", -30.69),
            ("pprcl, pprcl, memory used, parsec3/swaptions", -149.07),
            ("pprcl, pprcl, run time, splash2x/fft", 31.11),
        ];
        for (of, expected) in published {
            assert_eq!(cell(of), Some(expected), "{of}");
        }
    }

    #[test]
    fn no_prediction_is_made_of_its_own_cell() {
        use Knowledge::{Nothing, Prcl};
        let check = |name, metric, knowledge, expected| {
            let configuration = configuration(name, knowledge);
            let cell = Cell {
                metric,
                configuration: &configuration,
                inputs: &inputs()[0].1,
                published: (1.0, 1.0),
                simulated: Some((1.0, 1.0)),
            };
            assert_eq!(cell.role(), expected, "{name} {metric:?}");
        };
        check("prcl", Metric::Rss, Nothing, Role::Predicted);
        check("prcl", Metric::Rss, Prcl, Role::Calibrated);
        check("prcl", Metric::Runtime, Prcl, Role::Predicted);
        check("pprcl", Metric::Rss, Prcl, Role::Predicted);
        check("thp", Metric::Runtime, Nothing, Role::Calibrated);
        check("thp", Metric::Rss, Nothing, Role::NotModelled);
        check("rec", Metric::MemoryUsed, Nothing, Role::Arithmetic);
        check("prec", Metric::Runtime, Nothing, Role::NotModelled);
        // The memory that prcl saved is an input only where it is said to be known.
        let idle = |saved, knowledge| {
            let inputs = Inputs {
                saved,
                ..inputs()[0].1
            };
            Program::new(&inputs, knowledge).idle
        };
        let blind = |saved| idle(saved, Nothing).to_bits();
        assert_eq!(blind(0.1), blind(0.6));
        assert!(idle(0.1, Prcl) < idle(0.6, Prcl));
    }
}
