//! Tables, splits, picking, health and the retry budget.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use headrace_route::{
    Budget, Choice, Ejection, Health, NoRoute, Outcome, ReplicaIndex, Route, State, Table,
    sticky_draw,
};
use proptest::prelude::*;

fn table(models: &str, aliases: &str) -> Table {
    let json = format!(
        r#"{{"generation":7,
            "replicas":{{"w1":{{"address":"127.0.0.1:9001"}},"w2":{{"address":"127.0.0.1:9002"}}}},
            "models":{{{models}}},"aliases":{{{aliases}}}}}"#
    );
    Table::from_json(&json).expect("a sound table")
}

fn version(name: &str, state: &str, replicas: &str) -> String {
    format!(r#""{name}":{{"replicas":[{replicas}],"state":"{state}","reason":"so"}}"#)
}

fn model(name: &str, default: &str, versions: &[String]) -> String {
    format!(
        r#""{name}":{{"default":{{{default}}},"versions":{{{}}},"sticky":null}}"#,
        versions.join(",")
    )
}

/// A model whose one version is served by `count` replicas, `w0` to `wN` without those in `without`.
fn spread(count: u32, without: &HashSet<u32>) -> Table {
    let ids: Vec<_> = (0..count).filter(|id| !without.contains(id)).collect();
    let replicas: Vec<_> = ids
        .iter()
        .map(|id| format!(r#""w{id}":{{"address":"127.0.0.1:{id}"}}"#))
        .collect();
    let names: Vec<_> = ids.iter().map(|id| format!(r#""w{id}""#)).collect();
    let model = model("m", r#""1":1"#, &[version("1", "READY", &names.join(","))]);
    let json = format!(
        r#"{{"generation":1,"replicas":{{{}}},"models":{{{model}}}}}"#,
        replicas.join(",")
    );
    Table::from_json(&json).expect("a sound table")
}

fn resolve(table: &Table) -> Route<'_> {
    table.resolve("m", "", 0).expect("ready")
}

fn anyone() -> Choice<impl Fn(ReplicaIndex) -> bool, impl Fn(ReplicaIndex) -> u32> {
    Choice {
        excluded: None,
        is_ejected: |_| false,
        load: |_| 0,
    }
}

/// Even random numbers, the same in each run.
fn draws(count: usize) -> impl Iterator<Item = u64> {
    let mut state = 0x1234_5678_9abc_def0_u64;
    std::iter::repeat_with(move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.wrapping_mul(0x2545_f491_4f6c_dd1d)
    })
    .take(count)
}

#[test]
fn each_way_of_having_no_route_is_told_apart() {
    let table = table(
        &[
            model("loading", r#""1":1"#, &[version("1", "LOADING", "")]),
            model("failed", r#""1":1"#, &[version("1", "FAILED", r#""w1""#)]),
            model("lonely", r#""1":1"#, &[version("1", "READY", "")]),
            model("undecided", "", &[version("1", "READY", r#""w1""#)]),
        ]
        .join(","),
        "",
    );
    let none = |name, version| table.resolve(name, version, 0).expect_err("nowhere to go");
    assert_eq!(none("other", ""), NoRoute::ModelNotFound);
    assert_eq!(
        none("undecided ", ""),
        NoRoute::ModelNotFound,
        "names are exact"
    );
    assert_eq!(
        none("loading", "2"),
        NoRoute::VersionNotFound { model: "loading" }
    );
    assert_eq!(
        none("undecided", ""),
        NoRoute::VersionNotFound { model: "undecided" }
    );
    assert_eq!(
        none("lonely", ""),
        NoRoute::NoReplica {
            model: "lonely",
            version: "1"
        }
    );
    for (model, state) in [("loading", State::Loading), ("failed", State::Failed)] {
        for version in ["", "1"] {
            let expected = NoRoute::NotReady {
                model,
                version: "1",
                state,
                reason: "so",
            };
            assert_eq!(none(model, version), expected);
        }
    }
    assert!(table.resolve("undecided", "1", 0).is_ok());
}

#[test]
fn an_alias_leads_to_its_model_and_a_pinning_one_to_its_version_only() {
    let versions = [
        version("1", "READY", r#""w1""#),
        version("2", "READY", r#""w2""#),
    ];
    let table = table(
        &model("m", r#""1":1"#, &versions),
        r#""free":{"model":"m","version":""},"second":{"model":"m","version":"2"},"m":{"model":"m","version":"2"}"#,
    );
    let at = |name, version| table.resolve(name, version, 0).map(|route| route.version);
    assert_eq!(at("free", ""), Ok("1"));
    assert_eq!(at("free", "2"), Ok("2"));
    assert_eq!(at("second", ""), Ok("2"));
    assert_eq!(at("second", "2"), Ok("2"));
    assert_eq!(
        at("second", "1"),
        Err(NoRoute::VersionNotFound { model: "m" })
    );
    assert_eq!(at("m", ""), Ok("1"), "a model keeps its name");
}

#[test]
fn a_table_that_does_not_add_up_is_refused_with_its_fault() {
    let ready = version("1", "READY", r#""w1""#);
    for (json, fault) in [
        (r#"{"generation":1,"replicas":{},"models":{},"aliasses":{}}"#.to_owned(), "aliasses"),
        (format!(r#"{{"generation":1,"replicas":{{}},"models":{{{}}}}}"#, model("m", "", &[ready])), "w1"),
        (format!(r#"{{"generation":1,"replicas":{{}},"models":{{{}}}}}"#, model("m", r#""3":1"#, &[])), "\"3\""),
        (
            r#"{"generation":1,"replicas":{},"models":{},"aliases":{"a":{"model":"gone","version":""}}}"#.to_owned(),
            "gone",
        ),
    ] {
        let error = Table::from_json(&json).expect_err("unsound").to_string();
        assert!(error.contains(fault), "{error}");
    }
}

#[test]
fn a_split_keeps_its_shares_and_a_withdrawn_version_gets_nothing_unpinned() {
    let versions = ["1", "2", "3"].map(|name| version(name, "READY", r#""w1""#));
    let table = table(&model("m", r#""1":90,"2":0,"3":10"#, &versions), "");
    let mut counts = HashMap::new();
    for draw in draws(5000) {
        *counts
            .entry(table.resolve("m", "", draw).expect("ready").version)
            .or_insert(0_i32) += 1;
    }
    assert!(!counts.contains_key("2"));
    let sigma = (5000.0_f64 * 0.1 * 0.9).sqrt();
    assert!(
        f64::from((counts["3"] - 500).abs()) < 3.0 * sigma,
        "{counts:?}"
    );
    assert_eq!(
        table.resolve("m", "2", 0).map(|route| route.version),
        Ok("2"),
        "pinned it is still there"
    );
}

#[test]
fn a_version_that_cannot_serve_leaves_its_share_to_the_others() {
    let versions = [
        version("1", "READY", r#""w1""#),
        version("2", "LOADING", r#""w2""#),
    ];
    let table = table(&model("m", r#""1":50,"2":50"#, &versions), "");
    assert!(draws(100).all(|draw| {
        table
            .resolve("m", "", draw)
            .is_ok_and(|route| route.version == "1")
    }));
}

#[test]
fn a_sticky_key_stays_on_one_version_and_keys_spread_by_the_split() {
    let versions = ["1", "2"].map(|name| version(name, "READY", r#""w1""#));
    let table = table(&model("m", r#""1":75,"2":25"#, &versions), "");
    let second = (0..4000_u32).filter(|key| {
        let at = || {
            table
                .resolve("m", "", sticky_draw(&key.to_le_bytes()))
                .expect("ready")
                .version
        };
        assert_eq!(at(), at());
        at() == "2"
    });
    let share = second.count() as f64 / 4000.0;
    assert!((0.22..0.28).contains(&share), "{share}");
}

#[test]
fn picks_are_even_when_loads_are_and_avoid_the_loaded_one() {
    let table = spread(4, &HashSet::new());
    let mut counts = [0_u32; 4];
    for draw in draws(8000) {
        counts[resolve(&table)
            .pick(draw, &anyone())
            .expect("four are there") as usize] += 1;
    }
    assert!(
        counts.iter().all(|&count| (1870..2130).contains(&count)),
        "{counts:?}"
    );
    let busy = Choice {
        excluded: None,
        is_ejected: |_| false,
        load: |replica| u32::from(replica == 2),
    };
    assert!(
        draws(1000).all(|draw| resolve(&table).pick(draw, &busy) != Some(2)),
        "another one is always drawn too"
    );
}

proptest! {
    #[test]
    fn an_excluded_or_ejected_replica_is_never_picked(
        count in 1_u32..9, ejected in any::<u16>(), excluded in proptest::option::of(0_u32..9), random: u64, key: u64,
    ) {
        let table = spread(count, &HashSet::new());
        let is_ejected = |replica: ReplicaIndex| ejected >> replica & 1 == 1;
        let choice = Choice { excluded, is_ejected, load: |replica: ReplicaIndex| replica % 3 };
        let allowed: HashSet<_> = (0..count).filter(|&one| !is_ejected(one) && excluded != Some(one)).collect();
        for picked in [resolve(&table).pick(random, &choice), resolve(&table).pick_sticky(&key.to_le_bytes(), &choice)] {
            prop_assert_eq!(picked.is_some(), !allowed.is_empty());
            prop_assert!(picked.is_none_or(|one| allowed.contains(&one)));
        }
    }

    #[test]
    fn when_a_replica_goes_only_its_own_keys_move(count in 2_u32..9, gone in 0_u32..9, keys in proptest::collection::vec(any::<u64>(), 50)) {
        let gone = gone % count;
        let (before, after) = (spread(count, &HashSet::new()), spread(count, &HashSet::from([gone])));
        for key in keys {
            let at = |table: &Table| {
                let picked = resolve(table).pick_sticky(&key.to_le_bytes(), &anyone()).expect("one is there");
                table.replica(picked).id.clone()
            };
            let (was, is) = (at(&before), at(&after));
            let its_own = was == format!("w{gone}");
            prop_assert!(was == is || its_own);
            prop_assert_eq!(at(&before), was);
        }
    }

    #[test]
    fn any_split_is_kept_within_three_sigma(weights in proptest::collection::vec(0_u32..1000, 2..5)) {
        prop_assume!(weights.iter().any(|&weight| weight > 0));
        let versions: Vec<_> = (0..weights.len()).map(|at| version(&at.to_string(), "READY", r#""w1""#)).collect();
        let default: Vec<_> = weights.iter().enumerate().map(|(at, weight)| format!(r#""{at}":{weight}"#)).collect();
        let table = table(&model("m", &default.join(","), &versions), "");
        let mut counts = vec![0_u32; weights.len()];
        for draw in draws(4000) {
            let name: usize = table.resolve("m", "", draw).expect("ready").version.parse().expect("a number");
            counts[name] += 1;
        }
        let total = f64::from(weights.iter().sum::<u32>());
        for (&weight, &count) in weights.iter().zip(&counts) {
            let share = f64::from(weight) / total;
            let sigma = (4000.0 * share * (1.0 - share)).sqrt();
            // The draws are the same each time, so this holds or doesn't for good; 4 leaves room for the many cases.
            prop_assert!((f64::from(count) - 4000.0 * share).abs() <= 4.0 * sigma, "{weights:?} {counts:?}");
        }
    }
}

const SECOND: Duration = Duration::from_secs(1);

fn ejected(now: Instant) -> Health {
    let mut health = Health::default();
    for _ in 0..3 {
        assert!(!health.is_ejected());
        health.failure(now);
    }
    assert!(health.is_ejected());
    health
}

#[test]
fn a_replica_that_fails_in_a_row_is_ejected_and_taken_back_by_a_probe() {
    let now = Instant::now();
    let mut health = ejected(now);
    health.success();
    assert!(
        health.is_ejected(),
        "a late answer to an old request changes nothing"
    );
    assert!(!health.probe_is_due(now + Duration::from_millis(249)));
    assert!(health.probe_is_due(now + Duration::from_millis(250)));
    assert!(
        !health.probe_is_due(now + Duration::from_millis(251)),
        "one probe at a time"
    );
    assert_eq!(health.ejected_for(now + SECOND), Some(SECOND));
    health.success();
    assert_eq!(
        (health.is_ejected(), health.ejected_for(now + SECOND)),
        (false, None)
    );
}

#[test]
fn a_failed_probe_makes_the_next_one_wait_longer_up_to_a_bound() {
    let mut now = Instant::now();
    let mut health = ejected(now);
    let mut waits = Vec::new();
    for _ in 0..8 {
        let begun = now;
        while !health.probe_is_due(now) {
            now += Duration::from_millis(50);
        }
        waits.push(now.duration_since(begun).as_millis());
        health.failure(now);
    }
    assert_eq!(waits, [250, 500, 1000, 2000, 4000, 8000, 10_000, 10_000]);
}

#[test]
fn a_probe_that_never_reports_is_sent_again() {
    let now = Instant::now();
    let mut health = ejected(now);
    assert!(health.probe_is_due(now + SECOND));
    assert!(health.probe_is_due(now + 11 * SECOND));
}

#[test]
fn an_ejection_soon_after_the_last_lasts_longer_and_one_long_after_does_not() {
    for (later, pause) in [(SECOND, 500), (60 * SECOND, 250)] {
        let now = Instant::now();
        let mut health = ejected(now);
        assert!(health.probe_is_due(now + SECOND));
        health.success();
        for _ in 0..3 {
            health.failure(now + SECOND + later);
        }
        let due = now + SECOND + later + Duration::from_millis(pause);
        assert!(
            !health.clone().probe_is_due(
                due.checked_sub(Duration::from_millis(1))
                    .expect("after now")
            )
        );
        assert!(health.probe_is_due(due));
    }
}

#[test]
fn overload_never_ejects_and_scattered_failures_do_once_they_are_most() {
    let now = Instant::now();
    let mut health = Health::new(Ejection::default());
    for _ in 0..1000 {
        health.record(Outcome::Overloaded, now);
    }
    assert!(!health.is_ejected());
    for _ in 0..1000 {
        health.record(Outcome::Failed, now);
        health.record(Outcome::Answered, now);
        health.record(Outcome::Answered, now);
    }
    assert!(!health.is_ejected(), "a third is not most");
    let failed = (0..300).position(|at| {
        let outcome = if at % 3 == 0 {
            Outcome::Answered
        } else {
            Outcome::Failed
        };
        health.record(outcome, now);
        health.is_ejected()
    });
    assert!(failed.is_some_and(|at| at > 5), "{failed:?}");
}

#[test]
fn retries_are_a_share_of_recent_requests_and_a_few_more() {
    let mut now = Instant::now();
    let mut budget = Budget::new(0.2, 1.0, 10 * SECOND);
    let spend = |budget: &mut Budget, now| (0..1000).filter(|_| budget.try_retry(now)).count();
    assert_eq!(spend(&mut budget, now), 10, "the floor");
    for _ in 0..500 {
        budget.request(now);
    }
    assert_eq!(spend(&mut budget, now), 100, "a fifth of 500");
    now += 11 * SECOND;
    assert_eq!(spend(&mut budget, now), 10, "what is long ago is forgotten");
    now += 5 * SECOND;
    assert_eq!(spend(&mut budget, now), 0, "what isn't, isn't");
}
