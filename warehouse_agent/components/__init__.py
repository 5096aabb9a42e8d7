"""Fragments joined by views, and these views, which move together: turn, states, view phases.

A `Component` (`views.component_graph`) has one `ComponentTurn` in a command. States in their order:

    fragment         is reached by                              its type, or where it is
    waiting          the command begins                         HeldFragments.waiting
    left             it failed, or was not started              in none: its committed version stays
    held             write_and_prove, then ComponentTurn.hold   HeldFragment; its lock is held
    taken            HeldFragments.take                         TakenFragments, for one phase
    committed        TakenFragments.commit                      FragmentState.head
    ahead            committed, and readers have an older one   FragmentState.is_ahead
    flipped          visible_versions.Flips.move                FragmentState.flipped

    turn             goes on when                               to
    waits            every fragment is held or has left         last phase
    waits            whole sources are held, and it pays        early phase, then waits again
    last phase       nothing is ahead, every view is current    done: commit what was held
    last phase       max_lag allows it (phase_schedule)         done: commit, and stay ahead
    last phase       else                                       view phase, then done
    view phase       all are committed, none fails that holds   flip
    any              an error, or the command ends              files and locks are let go

    view in a phase  its type in view_phase                     then
    behind           BehindView: an input is stale or lacks     marked stale at the flip
    kept             KeptVersion: current, adopted, unchanged   shown as it is
    due              DueView                                    computed, unchanged or failed
    computed         ComputedVersion: no commit names it        committed, behind or failed
    committed        CommittedVersion                           flipped
    failed           FailedView                                 marked stale; may hold the component

`held_fragments` keeps what is proven, `state` reads what is committed and flipped, `phase_schedule`
decides when a phase is due by what `phase_forecast` expects from `phase_history`; `view_decision`
decides on each view, `view_phase` computes and commits them, `staleness` measures, `turn` calls all
of these in order. A crash between two steps leaves versions ahead of the flip at worst.
"""
