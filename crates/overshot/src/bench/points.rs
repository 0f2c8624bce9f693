//! From flags to the points of a sweep.

use super::Arguments;
use overshot_lab::{Point, Work};

const CONCURRENCY_UNLESS_TOLD: [u16; 7] = [1, 2, 4, 8, 16, 32, 64];

/// Decode or mixed points for every concurrency, prefill points for every length. Prompt lengths alone ask for no others.
pub fn points(arguments: &Arguments) -> Vec<Point> {
    let only_prefill = arguments.concurrency.is_empty() && !arguments.prefill.is_empty() && !arguments.mixed;
    let concurrency = match arguments.concurrency.as_slice() {
        [] if only_prefill => &[],
        [] => CONCURRENCY_UNLESS_TOLD.as_slice(),
        told => told,
    };
    let streams = concurrency
        .iter()
        .map(|streams| usize::from(*streams))
        .map(|streams| if arguments.mixed { Point::Mixed { streams } } else { Point::Decode { streams } });
    let prefill = arguments.prefill.iter().map(|tokens| Point::Prefill { tokens: tokens.get() });
    streams.chain(prefill).collect()
}

/// Where throughput is claimed: what is compared with itself.
pub fn largest_of_each_kind(points: &[Point]) -> impl Iterator<Item = Point> {
    Work::ALL.into_iter().filter_map(|work| points.iter().copied().filter(|point| point.work() == work).max())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{self, Command};
    use clap::Parser;

    fn of(flags: &[&str]) -> Vec<Point> {
        let line = args::Arguments::try_parse_from([&["overshot", "bench"], flags].concat()).ok().unwrap();
        let Command::Bench(arguments) = line.command else { panic!("another command") };
        points(&arguments)
    }

    #[test]
    fn flags_ask_for_points() {
        assert_eq!(of(&[]).len(), 7);
        assert_eq!(of(&["--batch", "3,5"]), [Point::Decode { streams: 3 }, Point::Decode { streams: 5 }]);
        assert_eq!(of(&["--prefill", "128"]), [Point::Prefill { tokens: 128 }]);
        let both = of(&["--prefill", "128", "--concurrency", "2"]);
        let largest = largest_of_each_kind(&[both.clone(), of(&[])].concat()).collect::<Vec<_>>();
        assert_eq!(largest, [Point::Decode { streams: 64 }, Point::Prefill { tokens: 128 }]);
        assert_eq!(both, [Point::Decode { streams: 2 }, Point::Prefill { tokens: 128 }]);
        let mixed = of(&["--mixed", "--url", "http://x", "--concurrency", "4"]);
        assert_eq!(mixed, [Point::Mixed { streams: 4 }]);
    }
}
