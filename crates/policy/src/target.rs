//! A request taken apart into what is judged one by one: the parts of a command, paths, addresses.

mod mention;

use std::path::{Path, PathBuf};

use crate::action::Action;
use crate::command::{Part, Script, is_read_only, looks};
use crate::decision::shown;
use crate::kind::Kind;
use crate::path::{Steps, is_within, resolve};
use crate::scene::Scene;

/// A path that is touched.
#[derive(Debug, Clone)]
pub(crate) struct Touch {
    /// The path, absolute.
    pub(crate) steps: Steps,
    /// Where it is, if it was named as a path and not only found among the words of a command.
    pub(crate) claimed: Option<PathBuf>,
    /// Whether it may be changed.
    pub(crate) writes: bool,
    /// Whether it is changed or removed itself, and not only something that is named with it.
    pub(crate) itself: bool,
    /// Whether it counts for protection: not if it is a word of which a piece counts.
    pub(crate) guarded: bool,
    /// As it was written, for people.
    pub(crate) written: String,
}

/// One thing that gets a verdict.
#[derive(Debug)]
pub(crate) struct Target<'a> {
    /// What it is.
    pub(crate) kinds: Vec<Kind>,
    /// The request it belongs to.
    pub(crate) action: &'a Action,
    /// The program that runs.
    pub(crate) part: Option<&'a Part>,
    /// Whether that only looks.
    pub(crate) looks: bool,
    /// Paths.
    pub(crate) touches: Vec<Touch>,
    /// Addresses.
    pub(crate) urls: Vec<String>,
    /// Whether there is more in it than can be looked at.
    pub(crate) lost: bool,
    /// What it is, for people, if there are others.
    pub(crate) about: Option<String>,
}

/// Everything in `action` that gets a verdict; `script` is its command, taken apart. There is at least one.
pub(crate) fn targets<'a>(
    action: &'a Action,
    script: Option<&'a Script>,
    scene: &Scene<'_>,
    home: Option<&Path>,
) -> Vec<Target<'a>> {
    let cwd = working_directory(action, scene, home);
    let real = action.real_cwd.as_deref();
    let place = Place { cwd: cwd.as_deref(), real, home };
    let kinds = action.kinds();
    let reads = kinds.iter().all(|kind| kind.only_reads());
    let claimed = |writes: bool| action.paths.iter().map(move |path| place.claimed(path, writes));
    let whole = Target {
        kinds,
        action,
        part: None,
        looks: false,
        touches: Vec::new(),
        urls: action.urls.clone(),
        lost: false,
        about: None,
    };
    if let Some(script) = script.filter(|script| !script.parts.is_empty()) {
        let looks = is_read_only(script) && !action.is_steered();
        return script.parts.iter().flat_map(|part| of_part(part, &whole, claimed(!looks), place)).collect();
    }
    if !action.paths.is_empty() {
        return claimed(!reads)
            .map(|touch| Target { about: Some(shown(&touch.written)), touches: vec![touch], ..whole.again() })
            .collect();
    }
    if action.urls.len() > 1 {
        let one = |url: &String| Target { about: Some(shown(url)), urls: vec![url.clone()], ..whole.again() };
        return action.urls.iter().map(one).collect();
    }
    vec![Target { about: action.urls.first().map(|url| shown(url)), ..whole }]
}

impl Target<'_> {
    /// The same once more.
    fn again(&self) -> Self {
        Self {
            kinds: self.kinds.clone(),
            action: self.action,
            part: self.part,
            looks: self.looks,
            touches: Vec::new(),
            urls: self.urls.clone(),
            lost: false,
            about: None,
        }
    }
}

/// The targets of one part: the program, and every file that a redirection opens.
fn of_part<'a>(
    part: &'a Part,
    whole: &Target<'a>,
    claimed: impl Iterator<Item = Touch>,
    place: Place<'_>,
) -> Vec<Target<'a>> {
    let looks = part.knows_its_words() && looks(part.argv()) && !whole.action.is_steered();
    let mut touches: Vec<Touch> = claimed.collect();
    let mentioned = mention::touches(part, looks, place);
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
        ..whole.again()
    }];
    let files = part
        .writes
        .iter()
        .map(|word| (word, Kind::Edit))
        .chain(part.reads.iter().map(|word| (word, Kind::Read)));
    for (word, kind) in files {
        targets.push(Target {
            kinds: vec![kind],
            touches: mention::file(word, kind == Kind::Edit, part, place),
            urls: Vec::new(),
            about: Some(shown(&word.text)),
            ..whole.again()
        });
    }
    targets
}

/// Where relative paths start.
#[derive(Debug, Clone, Copy)]
struct Place<'a> {
    cwd: Option<&'a Path>,
    /// Where that leads, if its links lead elsewhere.
    real: Option<&'a Path>,
    home: Option<&'a Path>,
}

impl Place<'_> {
    fn claimed(self, path: &Path, writes: bool) -> Touch {
        let resolved = resolve(path, self.cwd, self.home);
        Touch {
            steps: Steps::of(&resolved),
            claimed: Some(resolved),
            writes,
            itself: writes,
            guarded: true,
            written: path.to_string_lossy().into_owned(),
        }
    }
}

/// Where the action runs: where it says, from the first root on.
fn working_directory(action: &Action, scene: &Scene<'_>, home: Option<&Path>) -> Option<PathBuf> {
    let first = scene.roots.first().map(PathBuf::as_path);
    match &action.cwd {
        Some(cwd) => Some(resolve(cwd, first, home)),
        None => first.map(|root| resolve(root, None, home)),
    }
}

/// Whether the action runs in a root.
pub(crate) fn runs_within_roots(action: &Action, scene: &Scene<'_>, home: Option<&Path>) -> bool {
    let real = action.real_cwd.as_ref();
    working_directory(action, scene, home).is_some_and(|cwd| is_within(&cwd, scene.roots))
        && real.is_none_or(|real| is_within(&resolve(real, None, None), scene.roots))
}

/// Whether the action runs in the directory of a root itself.
pub(crate) fn runs_in_a_root(action: &Action, scene: &Scene<'_>, home: Option<&Path>) -> bool {
    let cwd = working_directory(action, scene, home);
    cwd.is_some_and(|cwd| scene.roots.iter().any(|root| resolve(root, None, home) == cwd))
}
