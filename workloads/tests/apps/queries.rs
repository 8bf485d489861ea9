use gpuvm_workloads::apps::{AppError, OfQuery, TableQuery};
use gpuvm_workloads::table::{Trips, generate};

use crate::every_way;

#[test]
fn queries_are_answered_as_by_the_processor() {
    // A last page and a last piece in part.
    let trips = || generate(70_001, 3).unwrap();
    every_way(&TableQuery::new(trips(), &OfQuery::<0>::default()).unwrap());
    every_way(&TableQuery::new(trips(), &OfQuery::<1>::default()).unwrap());
    every_way(&TableQuery::new(trips(), &OfQuery::<2>::default()).unwrap());
    every_way(&TableQuery::new(trips(), &OfQuery::<3>::default()).unwrap());
    every_way(&TableQuery::new(trips(), &OfQuery::<4>::default()).unwrap());
}

#[test]
fn a_table_without_rows_is_refused() {
    let refused = TableQuery::new(Trips::default(), &OfQuery::<0>::default());
    assert!(matches!(refused, Err(AppError::Input { .. })));
}
