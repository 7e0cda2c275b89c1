//! Splits a request into parts that are judged one by one: programs, paths, URLs.

mod mention;

use std::cell::{Cell, OnceCell};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use crate::action::{Action, MAX_PATH_BYTES};
use crate::address::local_path;
use crate::command::{Part, Script, is_read_only, looks, read_variable};
use crate::decision::shown;
use crate::kind::Kind;
use crate::path::{Steps, is_within, resolve};
use crate::protect::{self, Guard};
use crate::request_context::RequestContext;
use crate::variable::Variable;

#[derive(Debug, Clone)]
pub(crate) struct Touch {
    pub(crate) steps: Steps,
    /// The path, if the request names it as a path. `None` if it was found among the words of a command.
    pub(crate) claimed: Option<PathBuf>,
    pub(crate) writes: bool,
    /// `true` if the path itself is changed or removed. `false` if the path may only be used to reach a file.
    pub(crate) itself: bool,
    /// `true` if everything below the path is read as well.
    pub(crate) descends: bool,
    pub(crate) extent: Extent,
    /// `true` if the path contains a variable or the output of a command, so that it is partly unknown.
    pub(crate) expanded: bool,
    /// `true` if the path can be protected. `false` for a word of which only a part can be a protected path.
    pub(crate) guarded: bool,
    pub(crate) written: Rc<str>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Extent {
    /// The command may do anything to the path.
    #[default]
    Itself,
    /// The command may also change everything below the path.
    ChangesBelow,
    OnlyReads,
}

impl Touch {
    pub(crate) fn guard(&self) -> Option<Guard> {
        let expanded = || protect::guard_expanded(&self.steps).filter(|_| self.expanded);
        protect::guard(&self.steps, self.writes, self.itself).or_else(expanded)
    }
}

/// One part of a request. Each part gets its own verdict.
#[derive(Debug)]
pub(crate) struct Target<'a> {
    pub(crate) kinds: Vec<Kind>,
    pub(crate) action: &'a Action,
    pub(crate) part: Option<&'a Part>,
    /// `true` if the program only reads, and nothing else in the part changes anything.
    pub(crate) looks: bool,
    pub(crate) touches: Vec<Touch>,
    pub(crate) urls: Vec<String>,
    /// Result of [`Target::variable_parts`], computed once for all targets of a request.
    variables: Rc<OnceCell<Vec<Option<Vec<Part>>>>>,
    /// `true` if the request has more parts than can be judged.
    pub(crate) lost: bool,
    /// Description of the part for people, if the request has several parts.
    pub(crate) about: Option<String>,
}

/// How the output of a command's programs is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OutputUse {
    /// The output is only shown.
    Shown,
    /// The output may become a word or the input of another program.
    Used,
}

/// Maximum number of paths, URLs and variables of a request. Judging more would take more than a few
/// milliseconds.
const MAX_SUBJECTS: usize = 4096;

/// Maximum number of pairs of subjects that are judged against each other: paths with URLs, and parts of a
/// command with either.
const MAX_SUBJECT_PAIRS: usize = 16_384;

/// Maximum length of all variables of a request. A command has the same limit.
const MAX_ENV_BYTES: usize = 128 << 10;

/// Maximum number of names in all paths of a request, including words of its command that may be paths.
const MAX_STEPS: usize = 100_000;

/// Returns `true` if a request has more parts than can be judged.
pub(crate) fn is_too_large(action: &Action, script: Option<&Script>) -> bool {
    let counts = [action.paths.len(), action.urls.len(), action.env.len(), action.word_links.len()];
    let parts = script.map_or(0, |script| script.parts.len());
    let [paths, urls, variables, _] = counts;
    let pairs = paths * urls + parts * (paths + urls + variables);
    let length = |variable: &Variable| variable.name.len() + variable.value.len();
    let directories = [&action.cwd, &action.real_cwd].into_iter().flatten();
    let is_too_long = |path: &PathBuf| path.as_os_str().len() > MAX_PATH_BYTES;
    let names = |path: &PathBuf| path.as_os_str().as_encoded_bytes().split(|byte| *byte == b'/').count();
    let from = action.cwd.as_ref().map_or(0, names);
    counts.iter().any(|count| *count > MAX_SUBJECTS)
        || pairs > MAX_SUBJECT_PAIRS
        || action.env.iter().map(length).sum::<usize>() > MAX_ENV_BYTES
        || action.paths.iter().chain(directories).any(is_too_long)
        || action.paths.iter().map(|path| from + names(path)).sum::<usize>() > MAX_STEPS
}

/// Returns all targets of `action`, at least one. `script` is the parsed command of the action.
pub(crate) fn targets<'a>(
    action: &'a Action,
    script: Option<&'a Script>,
    context: &RequestContext<'_>,
    home: Option<&Path>,
) -> Vec<Target<'a>> {
    let kinds = action.kinds();
    if is_too_large(action, script) {
        return vec![Target { lost: true, ..Target::new(kinds, action, Vec::new()) }];
    }
    let cwd = working_directory(action, context, home);
    let real = action.real_cwd.as_deref();
    let steps_left = Cell::new(MAX_STEPS);
    let path_base = PathBase { cwd: cwd.as_deref(), real, home, steps_left: &steps_left };
    let reads = kinds.iter().all(|kind| kind.only_reads());
    // A `file:` URL is judged like a path.
    let local: Vec<PathBuf> = action.urls.iter().filter_map(|url| local_path(url)).collect();
    let paths: Vec<&PathBuf> = action.paths.iter().chain(&local).collect();
    let claimed = |writes: bool| paths.iter().map(move |path| path_base.claimed(path, writes));
    let whole = Target::new(kinds, action, action.urls.clone());
    if let Some(script) = script.filter(|script| !script.parts.is_empty()) {
        let looks = is_read_only(script) && action.reads_beside_command() && !action.is_steered();
        let output_use = if script.uses_output() { OutputUse::Used } else { OutputUse::Shown };
        let each = script.parts.iter();
        return each.flat_map(|part| of_part(part, &whole, claimed(!looks), output_use, path_base)).collect();
    }
    if !paths.is_empty() {
        return claimed(!reads)
            .map(|touch| Target {
                about: Some(shown(&touch.written)),
                touches: vec![touch],
                ..whole.without_touches()
            })
            .collect();
    }
    if action.urls.len() > 1 {
        let one = |url: &String| Target {
            about: Some(shown(url)),
            urls: vec![url.clone()],
            ..whole.without_touches()
        };
        return action.urls.iter().map(one).collect();
    }
    vec![Target { about: action.urls.first().map(|url| shown(url)), ..whole }]
}

impl<'a> Target<'a> {
    fn new(kinds: Vec<Kind>, action: &'a Action, urls: Vec<String>) -> Self {
        Self {
            kinds,
            action,
            part: None,
            looks: false,
            touches: Vec::new(),
            urls,
            variables: Rc::default(),
            lost: false,
            about: None,
        }
    }

    fn without_touches(&self) -> Self {
        let variables = Rc::clone(&self.variables);
        Self { variables, ..Self::new(self.kinds.clone(), self.action, self.urls.clone()) }
    }

    /// Returns, for each variable of the request, the programs that the command may run because of the
    /// variable. `None` stands for any program.
    pub(crate) fn variable_parts(&self) -> &[Option<Vec<Part>>] {
        self.variables.get_or_init(|| {
            let steering = self.action.env.iter().filter(|variable| !variable.is_harmless());
            steering.map(|variable| read_variable(&variable.name, &variable.value)).collect()
        })
    }
}

/// Returns the targets of one part of a command: its program, and every redirected file.
fn of_part<'a>(
    part: &'a Part,
    whole: &Target<'a>,
    claimed: impl Iterator<Item = Touch>,
    output_use: OutputUse,
    path_base: PathBase<'_>,
) -> Vec<Target<'a>> {
    let only_looks = part.knows_its_words() && looks(part.argv()) && !whole.action.is_steered();
    let looks = only_looks && whole.action.reads_beside_command();
    let mut touches: Vec<Touch> = claimed.collect();
    let bases = mention::bases(part, path_base);
    let mentioned = mention::touches(part, only_looks, output_use, &bases, path_base);
    let lost = mentioned.is_none();
    touches.extend(mentioned.unwrap_or_default());
    let mut urls = whole.urls.clone();
    urls.extend(mention::urls(part));
    let mut targets = vec![Target {
        part: Some(part),
        looks,
        lost,
        touches,
        urls,
        about: Some(shown(&part.line())),
        ..whole.without_touches()
    }];
    let files = part
        .writes
        .iter()
        .map(|word| (word, Kind::Edit))
        .chain(part.reads.iter().map(|word| (word, Kind::Read)));
    for (word, kind) in files {
        let touches = mention::file(word, kind == Kind::Edit, part, &bases, path_base);
        targets.push(Target {
            kinds: vec![kind],
            lost: touches.is_none(),
            touches: touches.unwrap_or_default(),
            urls: Vec::new(),
            about: Some(shown(&word.text)),
            ..whole.without_touches()
        });
    }
    targets
}

/// Directories in which relative paths of a request start.
#[derive(Debug, Clone, Copy)]
struct PathBase<'a> {
    cwd: Option<&'a Path>,
    /// Working directory with all links resolved, if it differs from `cwd`.
    real: Option<&'a Path>,
    home: Option<&'a Path>,
    /// Remaining number of names that the paths of the request may have.
    steps_left: &'a Cell<usize>,
}

impl PathBase<'_> {
    fn claimed(self, path: &Path, writes: bool) -> Touch {
        let resolved = resolve(path, self.cwd, self.home);
        Touch {
            steps: Steps::from_path(&resolved),
            claimed: Some(resolved),
            writes,
            itself: writes,
            descends: false,
            extent: Extent::Itself,
            expanded: false,
            guarded: true,
            written: path.to_string_lossy().into(),
        }
    }
}

/// Returns the working directory of the action. A relative one starts in the first root.
pub(crate) fn working_directory(
    action: &Action,
    context: &RequestContext<'_>,
    home: Option<&Path>,
) -> Option<PathBuf> {
    let first = context.roots.first().map(PathBuf::as_path);
    match &action.cwd {
        Some(cwd) => Some(resolve(cwd, first, home)),
        None => first.map(|root| resolve(root, None, home)),
    }
}

/// Returns `true` if the working directory of the action is a root or below one.
pub(crate) fn runs_within_roots(action: &Action, context: &RequestContext<'_>, home: Option<&Path>) -> bool {
    let real = action.real_cwd.as_ref();
    working_directory(action, context, home).is_some_and(|cwd| is_within(&cwd, context.roots))
        && real.is_none_or(|real| is_within(&resolve(real, None, None), context.roots))
}

pub(crate) fn runs_in_a_root(action: &Action, context: &RequestContext<'_>, home: Option<&Path>) -> bool {
    let cwd = working_directory(action, context, home);
    cwd.is_some_and(|cwd| context.roots.iter().any(|root| resolve(root, None, home) == cwd))
}
