//! Which feature sets of a crate are worth building.

use std::collections::BTreeSet;

use crate::workspace::Crate;

/// Up to so many features, every set is built; beyond, each alone, all but one, none and all.
const POWER_SET: usize = 5;

type Set = BTreeSet<String>;

/// Feature sets of a crate, without those that no step turns on and without sets that turn on the same.
/// The set that the crate's default features turn on is left out: other steps build it.
pub(super) fn sets(of: &Crate) -> Vec<Vec<String>> {
    let features = usable(of);
    let mut wanted: Vec<Set> = Vec::new();
    if features.len() <= POWER_SET {
        for bits in 0..1_u32 << features.len() {
            let chosen = features.iter().enumerate().filter(|(at, _)| bits & (1 << at) != 0);
            wanted.push(chosen.map(|(_, name)| name.clone()).collect());
        }
    } else {
        wanted.push(Set::new());
        wanted.extend(features.iter().map(|name| Set::from([name.clone()])));
        wanted.extend(
            features.iter().map(|left| features.iter().filter(|name| *name != left).cloned().collect()),
        );
        wanted.push(features.iter().cloned().collect());
    }
    let mut seen = BTreeSet::from([turned_on(of, &Set::from(["default".to_owned()]))]);
    wanted.retain(|set| seen.insert(turned_on(of, set)));
    wanted.into_iter().map(|set| set.into_iter().collect()).collect()
}

/// The arguments that turn on every feature but those that no step turns on.
pub(super) fn all(of: &Crate) -> Vec<String> {
    if of.skip_features.is_empty() {
        return vec!["--all-features".to_owned()];
    }
    let mut features = usable(of);
    if of.features.contains_key("default") {
        features.push("default".to_owned());
    }
    vec!["--features".to_owned(), features.join(",")]
}

/// What is left out of the crate's features, for the summary.
pub(super) fn left_out(of: &Crate) -> impl Iterator<Item = String> {
    of.skip_features.iter().map(|(feature, reason)| format!("{}/{feature} ({reason})", of.name))
}

fn usable(of: &Crate) -> Vec<String> {
    let skipped = |name: &String| {
        turned_on(of, &Set::from([name.clone()])).iter().any(|name| of.skip_features.contains_key(name))
    };
    of.features.keys().filter(|name| *name != "default" && !skipped(name)).cloned().collect()
}

/// The set with everything that its members turn on in the same crate.
fn turned_on(of: &Crate, set: &Set) -> Set {
    let mut on = Set::new();
    let mut next: Vec<String> = set.iter().cloned().collect();
    while let Some(feature) = next.pop() {
        if let Some(more) = of.features.get(&feature)
            && on.insert(feature)
        {
            next.extend(more.iter().filter(|name| !name.contains([':', '/'])).cloned());
        }
    }
    on.remove("default");
    on
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(features: &[(&str, &[&str])]) -> Crate {
        let owned = |list: &[&str]| list.iter().map(|name| (*name).to_owned()).collect();
        Crate {
            name: "x".to_owned(),
            features: features.iter().map(|(name, on)| ((*name).to_owned(), owned(on))).collect(),
            ..Crate::default()
        }
    }

    fn lines(of: &Crate) -> Vec<String> {
        sets(of).into_iter().map(|set| set.join(",")).collect()
    }

    #[test]
    fn a_crate_without_features_needs_no_build() {
        assert_eq!(lines(&with(&[])), [""; 0]);
    }

    #[test]
    fn every_set_is_built_but_the_default_one() {
        let of = with(&[("default", &["a"]), ("a", &["dep:a"]), ("b", &[])]);
        assert_eq!(lines(&of), ["", "b", "a,b"]);
    }

    #[test]
    fn sets_that_turn_on_the_same_are_built_once() {
        let of = with(&[("a", &["b", "c/d"]), ("b", &[])]);
        assert_eq!(lines(&of), ["a", "b"]);
    }

    #[test]
    fn many_features_are_built_alone_all_but_one_and_together() {
        let of = with(&[("a", &[]), ("b", &[]), ("c", &[]), ("d", &[]), ("e", &[]), ("f", &[])]);
        let lines = lines(&of);
        assert_eq!(lines.len(), 6 + 6 + 1);
        assert!(lines.contains(&"c".to_owned()) && lines.contains(&"a,b,c,e,f".to_owned()), "{lines:?}");
    }

    #[test]
    fn a_skipped_feature_is_never_turned_on() {
        let mut of =
            with(&[("default", &["b"]), ("a", &["b"]), ("b", &[]), ("heavy", &["native"]), ("native", &[])]);
        of.skip_features.insert("native".to_owned(), "needs a library".to_owned());
        assert_eq!(lines(&of), ["", "a"]);
        assert_eq!(all(&of), ["--features", "a,b,default"]);
        assert_eq!(left_out(&of).collect::<Vec<_>>(), ["x/native (needs a library)"]);
        of.skip_features.clear();
        assert_eq!(all(&of), ["--all-features"]);
    }
}
