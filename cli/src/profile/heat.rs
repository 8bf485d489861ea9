//! A profile as heat maps in an SVG file: for each region its pages over time, and how much each group of pages was used.

use gpuvm::{HeatColumn, Profile, RegionProfile};
use svg::Document;
use svg::node::element::{Group, Rectangle, Title};

use crate::bench::plot::text;
use crate::profile::report::{Bucket, ProfileReport};

const WIDTH: f64 = 1180.0;
const LEFT: f64 = 16.0;
const TOP: f64 = 60.0;
const MAP_WIDTH: f64 = 420.0;
const MAP_HEIGHT: f64 = 192.0;
const GAP: f64 = 24.0;
const STRIP_WIDTH: f64 = 48.0;
const HEADING: f64 = 36.0;
const FOOT: f64 = 34.0;
/// Groups of pages from top to bottom: what [`HeatColumn`] tells apart at most.
const ROWS_MAX: u64 = 64;
/// Steps of a colour; neighbours in one step are one rectangle.
const STEPS: f64 = 16.0;

/// From white to this, by red, green and blue.
type Colour = [u8; 3];
const FETCHES: Colour = [0xc8, 0x45, 0x2b];
const RESIDENT: Colour = [0x3b, 0x6e, 0xa5];
const USED: Colour = [0x2f, 0x85, 0x5a];
const WRITTEN: Colour = [0x8a, 0x4f, 0xa3];
const IN_PLACE: Colour = [0xb7, 0x79, 0x1f];

/// Draws all regions, one below the other.
pub fn draw(report: &ProfileReport, profile: &Profile) -> Document {
    let mut document = Document::new().set("font-family", "sans-serif").set("font-size", 12);
    document = document.add(Title::new(format!("Profile of {}", report.program)));
    let heading = format!("Profile of {}", report.program);
    let facts = format!(
        "{} samples at rests of {} ms; {:.3} s with the profile, {:.3} and {:.3} s without it; fetches are counted, all else is sampled",
        report.samples,
        report.interval_seconds * 1e3,
        report.seconds_with,
        report.seconds_without[0],
        report.seconds_without[1]
    );
    document = document
        .add(text(LEFT, 22.0, &heading).set("font-weight", "bold"))
        .add(text(LEFT, 42.0, &facts));
    let mut y = TOP;
    for region in &profile.regions {
        document = document.add(draw_region(region, profile.elapsed.as_secs_f64(), y));
        y += HEADING + MAP_HEIGHT + FOOT;
    }
    document
        .set("viewBox", (0, 0, WIDTH, y))
        .set("width", WIDTH)
        .set("height", y)
        .set("style", "background: white")
}

fn draw_region(region: &RegionProfile, seconds: f64, y: f64) -> Group {
    let name = format!(
        "{}: {} pages, placement {}, {} fetches",
        region.name,
        region.pages.len(),
        region.placement,
        region.fetches()
    );
    let buckets = Bucket::all(region, ROWS_MAX);
    let rows = buckets.len();
    let resident =
        |column: &HeatColumn, row: usize| share(column.resident[row], buckets[row].pages * u64::from(column.samples));
    let fetches = |column: &HeatColumn, row: usize| {
        f64::from(column.fetches[row]) / (buckets[row].pages.max(1) as f64 * f64::from(column.samples.max(1)))
    };
    let cells = region
        .columns
        .iter()
        .flat_map(|column| (0..rows).map(move |row| (column, row)));
    let most = cells.map(|(column, row)| fetches(column, row)).fold(0.0, f64::max);
    let top = y + HEADING;
    let maps = [
        (LEFT, RESIDENT, "in frames".to_owned()),
        (
            LEFT + MAP_WIDTH + GAP,
            FETCHES,
            format!("fetches, at most {most:.3} a page and sample"),
        ),
    ];
    let mut group = Group::new().add(text(LEFT, y + 14.0, &name).set("font-weight", "bold"));
    for (number, (x, colour, words)) in maps.into_iter().enumerate() {
        group = group.add(text(x, y + 30.0, &words));
        let values = region.columns.iter().map(|column| {
            let value = |row| match number {
                0 => resident(column, row),
                _ => fetches(column, row) / most.max(f64::MIN_POSITIVE),
            };
            (0..rows).map(value).collect()
        });
        group = group.add(map(x, top, MAP_WIDTH, colour, &values.collect::<Vec<_>>()));
        group = group
            .add(text(x, top + MAP_HEIGHT + 14.0, "0 s"))
            .add(text(x + MAP_WIDTH, top + MAP_HEIGHT + 14.0, &format!("{seconds:.3} s")).set("text-anchor", "end"));
    }
    add_strips(group, region, &buckets, top)
}

/// How each group of pages was used over the whole run.
fn add_strips(mut group: Group, region: &RegionProfile, buckets: &[Bucket], top: f64) -> Group {
    let a_page = |bucket: &Bucket| bucket.bytes_in_place as f64 / bucket.pages.max(1) as f64;
    let most = buckets.iter().map(a_page).fold(0.0, f64::max);
    let in_place = |bucket: &Bucket| a_page(bucket) / most.max(f64::MIN_POSITIVE);
    type Figure<'a> = &'a dyn Fn(&Bucket) -> f64;
    let strips: [(&str, Colour, Figure<'_>); 3] = [
        ("in use", USED, &|bucket| share(bucket.referenced, bucket.resident)),
        ("written", WRITTEN, &|bucket| share(bucket.dirty, bucket.resident)),
        ("in place", IN_PLACE, &in_place),
    ];
    let mut x = LEFT + 2.0 * (MAP_WIDTH + GAP);
    for (words, colour, figure) in strips {
        group = group.add(text(x, top - 6.0, words));
        group = group.add(map(
            x,
            top,
            STRIP_WIDTH,
            colour,
            &[buckets.iter().map(figure).collect()],
        ));
        x += STRIP_WIDTH + GAP / 2.0;
    }
    let last = region.pages.len().saturating_sub(1);
    group
        .add(text(x, top + 11.0, "page 0"))
        .add(text(x, top + MAP_HEIGHT, &format!("page {last}")))
}

/// Columns of values from 0 to 1, from left to right; their first values are at the top.
fn map(x: f64, y: f64, width: f64, colour: Colour, columns: &[Vec<f64>]) -> Group {
    let frame = Rectangle::new()
        .set("x", x)
        .set("y", y)
        .set("width", width)
        .set("height", MAP_HEIGHT)
        .set("fill", "#ffffff")
        .set("stroke", "#999999");
    let mut group = Group::new().add(frame);
    let across = width / columns.len().max(1) as f64;
    for (number, column) in columns.iter().enumerate() {
        let down = MAP_HEIGHT / column.len().max(1) as f64;
        let steps: Vec<u32> = column.iter().map(|value| step(*value)).collect();
        let mut from = 0;
        for run in steps.chunk_by(|one, next| one == next) {
            if run[0] > 0 {
                let cell = Rectangle::new()
                    .set("x", format!("{:.2}", x + number as f64 * across))
                    .set("y", format!("{:.2}", y + from as f64 * down))
                    .set("width", format!("{across:.2}"))
                    .set("height", format!("{:.2}", run.len() as f64 * down))
                    .set("fill", shade(colour, run[0]));
                group = group.add(cell);
            }
            from += run.len();
        }
    }
    group
}

/// Which step of a colour a value from 0 to 1 has: 0 for nothing at all alone.
fn step(value: f64) -> u32 {
    (value.clamp(0.0, 1.0) * STEPS).ceil() as u32
}

fn shade(colour: Colour, step: u32) -> String {
    let part = f64::from(step) / STEPS;
    let mix = |full: u8| 255.0 - (255.0 - f64::from(full)) * part;
    let [red, green, blue] = colour.map(mix);
    format!("#{:02x}{:02x}{:02x}", red as u8, green as u8, blue as u8)
}

fn share(part: u64, of: u64) -> f64 {
    part as f64 / of.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_white_and_all_is_the_colour() {
        assert_eq!(
            (step(0.0), step(1e-9), step(1.0), step(7.0), step(f64::NAN)),
            (0, 1, 16, 16, 0)
        );
        assert_eq!(shade(FETCHES, 16), "#c8452b");
        assert_eq!(shade(FETCHES, 0), "#ffffff");
    }

    #[test]
    fn neighbours_of_one_shade_are_one_rectangle() {
        let drawn = map(0.0, 0.0, 10.0, USED, &[vec![0.5, 0.5, 0.0, 1.0], vec![0.0; 4]]).to_string();
        // With the frame.
        assert_eq!(drawn.matches("<rect").count(), 3, "{drawn}");
    }
}
