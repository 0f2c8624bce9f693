//! The ledger through its public door: every status and every refusal, flags between levers, appending without touching
//! what stands there, plans that are held to their levers, and files that nobody meant well with.

#![allow(clippy::unwrap_used)]

use overshot_lab::ledger::{
    Addition, Better, Check, Closed, Flag, Guard, Ledger, LedgerError, LeverName, Mechanism, Movement,
    NewLever, Outcome, Plan, Projection, Reverted, Role, Run, Status,
};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

const HEAD: &str = "title = \"t\"\nhypothesis = \"h\"\n";
const MECHANISM: &str = "[mechanism]\nwhat = \"CTAs per SM\"\nbefore = 1\npredicted = 2\n";
const TAU: &str = "[threshold]\ntau_percent = 5\n";
const CLOSED: &str = "[closed]\ndate = 2026-11-29\n";

/// Throughput from 100 to `after` with a band, and what the mechanism did.
fn run(after: f64, band: f64, mechanism: &str) -> String {
    format!(
        "[[runs]]\nwhat = \"tok/s at {after}\"\nunit = \"tok/s\"\nbetter = \"higher\"\nbefore = 100\nafter = {after}\n\
         band_percent = {band}\n{mechanism}\n"
    )
}

const MOVED: &str = "mechanism = { before = 1, after = 2 }";
const STAYED: &str = "mechanism = { before = 1, after = 1 }";

fn ledger(files: &[(&str, String)]) -> Result<Ledger, LedgerError> {
    let folder = Path::new("levers");
    let texts = files.iter().map(|(name, text)| (folder.join(format!("{name}.toml")), text.clone()));
    Ledger::of(folder, texts.collect())
}

fn name(text: &str) -> LeverName {
    text.parse().unwrap()
}

fn status(text: &str) -> Status {
    ledger(&[("x", text.to_owned())]).unwrap().entry(&name("x")).unwrap().ruling.status
}

#[test]
fn every_status_follows_from_the_runs() {
    use Status::*;
    let base = [HEAD, MECHANISM, TAU].concat();
    let without_mechanism = [HEAD, TAU].concat();
    let guard =
        |measured: &str| format!("[[guards]]\nwhat = \"C=1\"\nunit = \"%\"\nat_least = -2\n{measured}\n");
    let superseded = format!("{HEAD}superseded_by = \"y\"\n{MECHANISM}{}{CLOSED}", run(120.0, 3.0, MOVED));
    let with_y = ledger(&[("x", superseded), ("y", base.clone())]).unwrap();
    assert_eq!(with_y.entry(&name("x")).unwrap().ruling.status, Superseded);
    let spread = "[[runs]]\nwhat = \"a\"\nunit = \"\"\nbetter = \"higher\"\nbefore = 100\nafter = 105.7\n\
                  spread = { low = 775, high = 845, count = 5 }\n";
    for (text, expected, what) in [
        (base.clone(), Open, "nothing measured"),
        (base.clone() + &run(120.0, 3.0, MOVED), Measuring, "a win that nobody closed"),
        (base.clone() + &run(120.0, 3.0, MOVED) + CLOSED, Adopted, "a win"),
        (base.clone() + &run(105.0, 3.0, MOVED) + CLOSED, Adopted, "exactly the threshold"),
        (base.clone() + &run(120.0, 3.0, "") + CLOSED, Adopted, "a win, mechanism not looked at"),
        (without_mechanism.clone() + &run(120.0, 3.0, "") + CLOSED, Adopted, "a win without a mechanism"),
        (base.clone() + &run(104.0, 3.0, MOVED) + CLOSED, Marginal, "a gain below the threshold"),
        (base.clone() + &run(104.0, 0.5, MOVED) + CLOSED, Marginal, "a gain surely below the threshold"),
        (base.clone() + &run(90.0, 3.0, MOVED) + CLOSED, Refuted, "a loss"),
        (base.clone() + &run(101.0, 3.0, MOVED) + CLOSED, Refuted, "no gain of the threshold's size"),
        (base.clone() + &run(90.0, 3.0, STAYED) + CLOSED, NotTested, "a loss, mechanism did not move"),
        (base.clone() + &run(120.0, 3.0, STAYED) + CLOSED, NotTested, "a win, mechanism did not move"),
        (base.clone() + &run(90.0, 3.0, "") + CLOSED, NotTested, "a loss, mechanism not looked at"),
        (without_mechanism.clone() + &run(90.0, 3.0, "") + CLOSED, NotTested, "a loss without a mechanism"),
        (base.clone() + &run(104.0, 6.0, MOVED) + CLOSED, Measuring, "closed inside the noise"),
        (base.clone() + spread + CLOSED, Measuring, "closed inside the band of single runs"),
        (
            base.clone() + &run(120.0, 3.0, MOVED) + &run(90.0, 3.0, "") + CLOSED,
            Measuring,
            "wins here, loses there",
        ),
        (
            base.clone() + &run(120.0, 3.0, MOVED) + &run(103.0, 9.0, "") + CLOSED,
            Adopted,
            "a win and a doubt",
        ),
        (
            base.clone() + &run(90.0, 3.0, MOVED) + &run(103.0, 9.0, "") + CLOSED,
            Refuted,
            "a loss and a doubt",
        ),
        (base.clone() + &run(90.0, 3.0, STAYED) + &run(120.0, 3.0, MOVED) + CLOSED, Adopted, "moved at last"),
        (base.clone() + &run(120.0, 3.0, MOVED) + &guard("measured = -1") + CLOSED, Adopted, "guards hold"),
        (base.clone() + &run(120.0, 3.0, MOVED) + &guard("measured = -3") + CLOSED, Refuted, "a guard fails"),
        (base.clone() + &run(120.0, 3.0, MOVED) + &guard("") + CLOSED, Measuring, "a guard not measured"),
        (base.clone() + &run(90.0, 3.0, MOVED) + "role = \"context\"\n" + CLOSED, Measuring, "context alone"),
        (base.clone() + &run(120.0, 3.0, MOVED) + "[reverted]\nreason = \"r\"\n", Reverted, "taken out"),
        (
            base.clone() + &run(120.0, 3.0, MOVED) + CLOSED + "[reverted]\nreason = \"r\"\n",
            Reverted,
            "closed, out",
        ),
    ] {
        assert_eq!(status(&text), expected, "{what}:\n{text}");
    }
}

#[test]
fn the_mechanism_moves_by_half_of_what_was_predicted_or_not_at_all() {
    for (after, expected) in [
        (1.0, Movement::DidNotMove),
        (1.49, Movement::DidNotMove),
        (1.5, Movement::Moved),
        (0.0, Movement::DidNotMove),
        (3.0, Movement::Moved),
    ] {
        let check = format!("mechanism = {{ before = 1, after = {after} }}");
        let text = [HEAD, MECHANISM, &run(90.0, 3.0, &check)].concat();
        let ledger = ledger(&[("x", text)]).unwrap();
        assert_eq!(ledger.entry(&name("x")).unwrap().ruling.movement, expected, "{after}");
    }
}

#[test]
fn the_last_run_of_the_same_thing_counts() {
    let again = |after: f64| run(after, 3.0, MOVED).replace(&format!("tok/s at {after}"), "tok/s");
    let text = [HEAD, MECHANISM, TAU, &again(120.0), &again(90.0), CLOSED].concat();
    assert_eq!(status(&text), Status::Refuted);
}

/// One look at 4.5 % is enough for a gain of 5 %; the third of three is not.
#[test]
fn who_measures_until_it_wins_must_win_by_more() {
    let again = |after: f64| run(after, 4.5, MOVED).replace(&format!("tok/s at {after}"), "tok/s");
    let base = [HEAD, MECHANISM, TAU].concat();
    assert_eq!(status(&[&base, &again(105.0), CLOSED].concat()), Status::Adopted);
    let thrice = base + &again(101.0) + &again(99.0) + &again(105.0);
    assert_eq!(status(&[&thrice, CLOSED].concat()), Status::Measuring);
    assert_eq!(status(&[&thrice.replace("4.5", "3"), CLOSED].concat()), Status::Adopted);
}

#[test]
fn chance_multiplies_a_speed() {
    for (after, low, high) in [(200.0, 81.8, 120.0), (50.0, -54.5, -45.0), (105.0, -4.5, 15.5)] {
        let ledger = ledger(&[("x", [HEAD, &run(after, 10.0, "")].concat())]).unwrap();
        let found = ledger.entry(&name("x")).unwrap().ruling.runs[0].interval_percent.unwrap();
        assert!((found.low - low).abs() < 0.06 && (found.high - high).abs() < 0.06, "{after}: {found:?}");
    }
}

#[test]
fn what_is_refuted_was_lost_while_the_mechanism_moved() {
    let base = [HEAD, MECHANISM, TAU].concat();
    let doubt = run(103.0, 9.0, MOVED);
    assert_eq!(status(&[&base, &run(90.0, 3.0, ""), &doubt, CLOSED].concat()), Status::NotTested);
    assert_eq!(status(&[&base, &run(90.0, 3.0, MOVED), &doubt, CLOSED].concat()), Status::Refuted);
}

/// What was projected, and what the run of these words gave: neither another run, nor a projection that knew the runs.
#[test]
fn forecasts_are_held_against_the_run_they_name() {
    let closed = |what: &str, after_runs: usize| {
        let projections = format!(
            "[[projections]]\nwhat = \"tok/s at 110\"\nuplift_percent = [5, 10, 15]\n\
             [[projections]]\nwhat = \"{what}\"\nuplift_percent = [39, 40, 41]\nafter_runs = {after_runs}\n"
        );
        let runs = run(110.0, 3.0, MOVED) + &run(140.0, 3.0, MOVED);
        ledger(&[("x", [HEAD, MECHANISM, TAU, &projections, &runs, CLOSED].concat())]).unwrap()
    };
    let measured = |ledger: &Ledger| {
        let pairs = ledger.projected_and_measured();
        pairs.map(|(made, measured)| (made.uplift_percent[1], measured.round())).collect::<Vec<_>>()
    };
    assert_eq!(measured(&closed("tok/s at 140", 0)), [(40.0, 40.0)]);
    assert_eq!(measured(&closed("tok/s at 140", 2)), [(10.0, 10.0)]);
    let unnamed = closed("some other thing", 0);
    assert_eq!(measured(&unnamed), []);
    assert!(unnamed.problems()[0].1.contains("no run of these words counts"), "{:?}", unnamed.problems());
}

fn close(text: &str, claim: Option<Status>) -> Result<Status, String> {
    let ledger = ledger(&[("x", text.to_owned())]).unwrap();
    let closed = Closed { date: None, note: Some("n".into()) };
    match ledger.append(&name("x"), Addition::Closed { claim, closed }) {
        Ok(edited) => Ok(edited.ledger.entry(&name("x")).unwrap().ruling.status),
        Err(error) => Err(error.to_string()),
    }
}

#[test]
fn ends_that_the_runs_do_not_support_are_refused() {
    let base = [HEAD, MECHANISM, TAU].concat();
    for (text, claim, part) in [
        (base.clone(), None, "nothing was measured"),
        (base.clone(), Some(Status::Adopted), "nothing was measured"),
        (
            base.clone() + &run(90.0, 3.0, STAYED),
            Some(Status::Refuted),
            "cannot be closed as refuted: its runs say not-tested: its mechanism did not move: CTAs per SM 1 -> 1 where 2 \
             was predicted",
        ),
        (
            base.clone() + &run(90.0, 3.0, ""),
            Some(Status::Refuted),
            "but nobody looked whether its mechanism moved",
        ),
        (
            base.clone() + &run(105.7, 10.3, MOVED),
            Some(Status::Adopted),
            "lies inside the noise band of 10 %; 7 times the runs would tell",
        ),
        (base.clone() + &run(104.0, 3.0, MOVED), Some(Status::Adopted), "its runs say marginal: +4.0 %"),
        (base.clone() + &run(120.0, 3.0, MOVED), Some(Status::Refuted), "its runs say adopted"),
        (base.clone() + &run(90.0, 3.0, MOVED), Some(Status::NotTested), "its runs say refuted"),
        (base.clone() + &run(120.0, 3.0, MOVED) + &run(80.0, 3.0, ""), None, "split it by where it applies"),
        (
            base.clone() + &run(120.0, 3.0, MOVED).replace("band_percent = 3\n", ""),
            Some(Status::Adopted),
            "give a band or an interval",
        ),
        (base.clone() + &run(120.0, 3.0, MOVED) + CLOSED, None, "it is closed (adopted) and takes no end"),
    ] {
        let refusal = close(&text, claim).unwrap_err();
        assert!(refusal.contains(part), "{refusal}\nand not\n{part}");
    }
    for (text, status) in [
        (base.clone() + &run(120.0, 3.0, MOVED), Status::Adopted),
        (base.clone() + &run(104.0, 3.0, MOVED), Status::Marginal),
        (base.clone() + &run(90.0, 3.0, MOVED), Status::Refuted),
        (base.clone() + &run(90.0, 3.0, STAYED), Status::NotTested),
    ] {
        assert_eq!(close(&text, Some(status)), Ok(status));
        assert_eq!(close(&text, None), Ok(status));
    }
}

fn dependent(after: &str) -> String {
    format!(
        "{HEAD}cost_days = 2\ndepends_on = [\"x\"]\n{MECHANISM}{TAU}[[projections]]\nwhat = \"tok/s\"\n\
         uplift_percent = [5, 10, 15]\n{after}\n"
    )
}

#[test]
fn levers_that_rest_on_a_closed_one_are_flagged_until_projected_again() {
    let measured = [HEAD, MECHANISM, TAU, &run(90.0, 3.0, MOVED)].concat();
    let before = ledger(&[("x", measured), ("y", dependent(""))]).unwrap();
    let y = name("y");
    assert!(before.entry(&y).unwrap().flags.is_empty());
    assert!(before.entry(&y).unwrap().gain_a_day_percent().unwrap() > 4.0);
    let closed = Addition::Closed { claim: None, closed: Closed { date: None, note: None } };
    let after = before.append(&name("x"), closed).unwrap().ledger;
    let entry = after.entry(&y).unwrap();
    assert_eq!(entry.flags, [Flag::Reproject { depends_on: name("x"), now: Status::Refuted }]);
    assert_eq!(entry.flags[0].to_string(), "re-project: depends on x, now refuted");
    assert_eq!(entry.gain_a_day_percent(), Some(0.0));
    let projection = Projection {
        what: "tok/s".into(),
        uplift_percent: [0.0, 1.0, 2.0],
        date: None,
        after: BTreeMap::new(),
        after_runs: 0,
    };
    let again = after.append(&y, Addition::Projection(projection)).unwrap();
    let entry = again.ledger.entry(&y).unwrap();
    assert!(entry.flags.is_empty() && again.text.contains("after = { x = \"refuted\" }"), "{}", again.text);
    assert!((entry.gain_a_day_percent().unwrap() - 0.5).abs() < 0.01);
    assert_eq!(entry.lever.projections.len(), 2);
}

#[test]
fn what_an_adopted_lever_refutes_is_flagged() {
    let adopted = format!("{HEAD}refutes = [\"y\"]\n{MECHANISM}{}{CLOSED}", run(120.0, 3.0, MOVED));
    let ledger = ledger(&[("x", adopted), ("y", [HEAD, MECHANISM].concat())]).unwrap();
    assert_eq!(ledger.entry(&name("y")).unwrap().flags, [Flag::RefutedBy { lever: name("x") }]);
}

#[test]
fn links_lead_somewhere_and_not_in_circles() {
    let on = |names: &str| format!("{HEAD}depends_on = [{names}]\n");
    for (files, part) in [
        (vec![("x", on("\"z\""))], "x: depends_on names `z`, which is not in this ledger"),
        (vec![("x", on("\"x\""))], "which is itself"),
        (
            vec![("x", on("\"y\"")), ("y", on("\"z\"")), ("z", on("\"x\"")), ("a", on("\"x\""))],
            "depends on it in turn",
        ),
        (vec![("x", on("\"../y\""))], "`../y` is no lever's name"),
        (vec![("X", HEAD.to_owned())], "`X` is no lever's name"),
    ] {
        let error = ledger(&files).unwrap_err();
        assert!(error.to_string().contains(part) && error.is_bad_input(), "{error}");
    }
    assert!(ledger(&[("x", on("\"y\", \"y\"")), ("y", HEAD.to_owned())]).is_ok());
}

#[test]
fn bad_files_are_told_with_their_place() {
    let with = |text: &str| [HEAD, MECHANISM, text].concat();
    for (text, part) in [
        (String::new(), "levers/x.toml, line 1: missing field `title`"),
        (
            HEAD.to_owned() + "status = \"adopted\"\n",
            "line 3: `status` follows from the runs and is not stored",
        ),
        (HEAD.to_owned() + "colour = 1\n", "line 3: unknown field `colour`"),
        (HEAD.to_owned() + "= 1\n", "line 3: "),
        ("title = \"a\\nb\"\nhypothesis = \"h\"\n".into(), "title must stand on one line"),
        ("title = \"a\\u001b[2J\"\nhypothesis = \"h\"\n".into(), "control character \\u{1b}"),
        ("title = \"a\"\nhypothesis = \" \"\n".into(), "hypothesis is empty"),
        (HEAD.to_owned() + "cost_days = 0\n", "cost_days is 0: use a number above 0"),
        (HEAD.to_owned() + "cost_days = nan\n", "cost_days is NaN"),
        ([HEAD, &MECHANISM.replace("= 2", "= 1")].concat(), "predicted to stay at 1"),
        (with(&run(0.0, 1.0, "")), "run 1: after is 0"),
        (with(&run(100.0, -1.0, "")), "run 1: band_percent is -1"),
        (with(&run(100.0, 1.0, "interval_percent = [-1, 1]")), "give one of band_percent"),
        (
            with(&run(100.0, 1.0, "").replace("band_percent = 1", "interval_percent = [1, 2]")),
            "does not hold the uplift",
        ),
        (
            with(
                &run(100.0, 1.0, "").replace("band_percent = 1", "spread = { low = 1, high = 2, count = 7 }"),
            ),
            "spread.count is 7",
        ),
        (
            with(
                &run(100.0, 1.0, "").replace("band_percent = 1", "spread = { low = 2, high = 2, count = 2 }"),
            ),
            "do not tell what chance does",
        ),
        (
            with(&run(101.0, 1.0, "").replace("after = 101", "after = 1e300")),
            "no ratio that a measurement gives",
        ),
        ([HEAD, &run(100.0, 1.0, MOVED)].concat(), "checks a mechanism that the lever does not name"),
        (with("[[projections]]\nwhat = \"x\"\nuplift_percent = [3, 2, 1]\n"), "lowest first"),
        (with("[[projections]]\nwhat = \"x\"\nuplift_percent = [1, 2]\n"), "levers/x.toml, line"),
        (with("[[guards]]\nwhat = \"x\"\n"), "guard 1: give at_most or at_least"),
        (with("[threshold]\ntau_percent = -1\n"), "tau_percent is -1"),
        (with("[closed]\ndate = 2026-13-01\n"), "levers/x.toml, line"),
        (with("[closed]\ndate = \"yesterday\"\n"), "levers/x.toml, line"),
    ] {
        let error = ledger(&[("x", text.clone())]).unwrap_err();
        let told = error.to_string();
        assert!(
            told.contains(part) && !told.contains('\n') && error.is_bad_input(),
            "{told}\nand not\n{part}\nof\n{text}"
        );
    }
}

fn a_run() -> Run {
    Run {
        date: Some("2026-11-30".parse().unwrap()),
        what: "tok/s at C=96".into(),
        unit: "tok/s".into(),
        better: Better::Higher,
        before: 845.0,
        after: 980.5,
        band_percent: None,
        interval_percent: Some([10.0, 21.0]),
        spread: None,
        role: Role::Verdict,
        mechanism: Some(Check { before: 1.0, after: 2.0 }),
        source: Some("runs/x.jsonl".into()),
    }
}

#[test]
fn appending_leaves_what_stands_there_alone() {
    let text = "# A remark at the top.\ntitle = \"t\"   # and one behind\nhypothesis = '''\nh'''\n\n[mechanism]\nwhat = \"m\"\n\
                before   = 1.50\npredicted = 2\n\n# Before the run.\n[[runs]]\nwhat = \"a\"\nunit = \"us\"\nbetter = \"lower\"\n\
                before = 2\nafter = 1\nband_percent = 1\n# At the end.\n";
    let before = ledger(&[("x", text.to_owned())]).unwrap();
    let x = name("x");
    let edited = before.append(&x, Addition::Run(a_run())).unwrap();
    for line in text.lines() {
        assert!(edited.text.lines().any(|kept| kept == line), "`{line}` is gone from\n{}", edited.text);
    }
    let runs = &edited.ledger.entry(&x).unwrap().lever.runs;
    assert_eq!((runs[0].what.as_str(), &runs[1]), ("a", &a_run()));
    let guard = |limit, measured| Guard {
        what: "C=1".into(),
        unit: "%".into(),
        at_most: None,
        at_least: limit,
        measured,
    };
    let guarded = edited.ledger.append(&x, Addition::Guard(guard(Some(-2.0), None))).unwrap().ledger;
    assert_eq!(guarded.entry(&x).unwrap().ruling.outcome, Outcome::Undecided);
    for (wrong, part) in
        [(guard(None, None), "nothing is told"), (guard(Some(-9.0), Some(-1.0)), "has its limit already")]
    {
        assert!(guarded.append(&x, Addition::Guard(wrong)).unwrap_err().to_string().contains(part));
    }
    let measured = guarded.append(&x, Addition::Guard(guard(None, Some(-1.0)))).unwrap().ledger;
    assert_eq!(measured.entry(&x).unwrap().ruling.outcome, Outcome::Win);
    let twice = measured.append(&x, Addition::Guard(guard(None, Some(0.0)))).unwrap_err();
    assert!(twice.to_string().contains("measured already"), "{twice}");
    let closed = Addition::Closed { claim: Some(Status::Adopted), closed: Closed { date: None, note: None } };
    let closed = measured.append(&x, closed).unwrap().ledger;
    let late = closed.append(&x, Addition::Run(a_run())).unwrap_err().to_string();
    assert!(late.contains("takes no run: begin a new lever"), "{late}");
    let reverted = Reverted { date: None, reason: "it broke".into() };
    let out = closed.append(&x, Addition::Reverted(reverted)).unwrap().ledger;
    assert_eq!(out.entry(&x).unwrap().ruling.status, Status::Reverted);
}

#[test]
fn nothing_is_written_that_would_not_be_read_again() {
    let before = ledger(&[("x", [HEAD, MECHANISM].concat())]).unwrap();
    let long = Run { what: "x".repeat(300_000), ..a_run() };
    let told = before.append(&name("x"), Addition::Run(long)).unwrap_err().to_string();
    assert!(told.contains("longer than 256 KiB"), "{told}");
    let measured = before.append(&name("x"), Addition::Run(a_run())).unwrap().ledger;
    let projection = Projection {
        what: "tok/s".into(),
        uplift_percent: [0.0, 1.0, 2.0],
        date: None,
        after: BTreeMap::new(),
        after_runs: 0,
    };
    let late = measured.append(&name("x"), Addition::Projection(projection)).unwrap();
    assert!(late.text.contains("after_runs = 1"), "{}", late.text);
}

#[test]
fn a_new_lever_is_complete_and_can_be_read_again() {
    let new = NewLever {
        title: "Half-size tiles".into(),
        hypothesis: "Two CTAs\nhide waits.".into(),
        cost_days: 4.5,
        depends_on: vec![],
        refutes: vec![],
        mechanism: Mechanism { what: "CTAs per SM".into(), unit: String::new(), before: 1.0, predicted: 2.0 },
        projection: Projection {
            what: "tok/s".into(),
            uplift_percent: [0.0, 15.0, 40.0],
            date: None,
            after: BTreeMap::new(),
            after_runs: 0,
        },
        tau_percent: 5.0,
    };
    let empty = ledger(&[]).unwrap();
    let edited = empty.create(&name("smem-49k"), &new).unwrap();
    assert!(edited.ledger.problems().is_empty());
    let lever = &edited.ledger.entry(&name("smem-49k")).unwrap().lever;
    assert_eq!((lever.cost_days, lever.mechanism.as_ref()), (Some(4.5), Some(&new.mechanism)));
    assert!(
        edited.ledger.create(&name("smem-49k"), &new).unwrap_err().to_string().contains("exists already")
    );
    let lost = NewLever { depends_on: vec![name("nowhere")], ..new };
    assert!(edited.ledger.create(&name("z"), &lost).unwrap_err().to_string().contains("nowhere"));
}

fn ours() -> (PathBuf, Ledger) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../levers");
    let ledger = Ledger::read(&folder).unwrap();
    (folder, ledger)
}

#[test]
fn our_own_ledger_holds_together() {
    let (_, ledger) = ours();
    assert_eq!(ledger.problems(), []);
    assert_eq!(ledger.missing_sources(), []);
}

#[test]
fn a_plan_is_held_to_its_levers() {
    let folder = tempfile::tempdir().unwrap();
    let (page, svg) = (folder.path().join("PLAN.md"), folder.path().join("PLAN.svg"));
    let (_, ledger) = ours();
    let plan = Plan::of(&ledger, "PLAN.svg");
    assert!(matches!(plan.check(&page, &svg), Err(LedgerError::Read { .. })));
    plan.write(&page, &svg).unwrap();
    plan.check(&page, &svg).unwrap();
    // A number that no run gives, a verdict, a missing end, another plot.
    for (from, to) in [("+38 %", "+48 %"), ("## Refuted", "## Adopted too"), ("![", "")] {
        std::fs::write(&page, plan.text.replacen(from, to, 1)).unwrap();
        let error = plan.check(&page, &svg).unwrap_err();
        assert!(matches!(error, LedgerError::Outdated { .. }) && !error.is_bad_input(), "{error}");
    }
    plan.write(&page, &svg).unwrap();
    std::fs::write(&svg, plan.svg.replacen("circle", "square", 1)).unwrap();
    assert!(plan.check(&page, &svg).unwrap_err().to_string().contains("PLAN.svg, line"));
}

#[test]
fn a_plan_says_what_would_test_an_idea() {
    let tested = [HEAD, MECHANISM, TAU, &run(90.0, 3.0, STAYED), CLOSED].concat();
    let open =
        dependent("").replace("title = \"t\"", "title = \"other\"").replace("depends_on = [\"x\"]\n", "");
    let plan = Plan::of(&ledger(&[("x", tested), ("smem", open)]).unwrap(), "PLAN.svg");
    let part = "A run would test it in which CTAs per SM goes 1 -> 2: smem is to move it.";
    assert!(plan.text.contains("## Not tested") && plan.text.contains(part), "{}", plan.text);
}

fn fuzz_cases() -> usize {
    overshot_testing::cases(2000)
}

/// Bytes of real levers turned, dropped, doubled and joined: read or refused in one line, planned when read.
#[test]
fn mutated_levers_never_panic() {
    let (folder, _) = ours();
    let mut texts: Vec<Vec<u8>> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|ending| ending == "toml"))
        .map(|path| std::fs::read(path).unwrap())
        .collect();
    texts.sort();
    let seed = overshot_testing::seed();
    let mut random = fastrand::Rng::with_seed(seed);
    let pieces =
        ["nan", "-inf", "1e308", "[[runs]]\n", "= ", "\"", "'''", "{", "2026-11-29", "\u{202e}", "-0.0", "0"];
    let mut read = 0;
    for case in 0..fuzz_cases() {
        let mut bytes = texts[random.usize(..texts.len())].clone();
        for _ in 0..random.usize(1..4) {
            let at = random.usize(..bytes.len().max(1)).min(bytes.len());
            match random.u8(..5) {
                0 => bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte = random.u8(..)),
                1 => bytes.truncate(at),
                2 => {
                    let piece = pieces[random.usize(..pieces.len())].bytes();
                    bytes.splice(at..at, piece);
                }
                3 => {
                    let end = (at + random.usize(..40)).min(bytes.len());
                    bytes.drain(at..end);
                }
                _ => {
                    let other = &texts[random.usize(..texts.len())];
                    bytes.extend_from_slice(&other[random.usize(..other.len())..]);
                }
            }
        }
        let text = String::from_utf8_lossy(&bytes).into_owned();
        match ledger(&[("x", text)]) {
            Ok(ledger) => {
                read += 1;
                let plan = Plan::of(&ledger, "PLAN.svg");
                assert!(!plan.svg.contains("NaN"), "case {case}, seed {seed}");
                let _ = ledger.append(&name("x"), Addition::Run(Run { mechanism: None, ..a_run() }));
            }
            Err(error) => {
                assert_eq!(error.to_string().lines().count(), 1, "case {case}, seed {seed}: {error}")
            }
        }
    }
    assert!(read > fuzz_cases() / 50, "only {read} could be read, seed {seed}");
}
