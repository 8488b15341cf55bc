"""Words that a draft's text may not use for names of its own."""

_WORDS = """
    self triangular_product device native torch ctypes nn row rows threads blocks wanted stream left right sums start
    step place value total carry before scanned base at first end stop part down across maximum minimum joined with
    larger smaller larger_behind smaller_behind warp_fold block_fold block_scan ring fetch inside finite i j sum bytes Left Right Side left_by_four
    right_by_four e multiply multiply_tiles multiply_thin column_of_lane lay_left column result four multiply_stage copy_ahead end_group wait_for_groups row_of column_of
    kThreads DEPTH STAGES store to_float Place Moments Shifted Index first_row first_column batches lane float double
    int bool char short long signed unsigned const void auto if else for while do switch case return break continue
    struct union enum class template typename namespace new delete this operator default register static extern inline
    volatile goto sizeof exp log log1p expm1 tanh erf erfc sqrt sin cos atan log2 exp2 floor ceil trunc rint pow atan2
    fmod abs j0 j1 y0 y1 jn yn gamma signal index div remainder round max min and or not xor in is lambda pass del def
    strip line line_of row_of_line put_strip read_sixteen prepare round_to_tf32 there bits values kDepth kLarge kArchitectures
    Items Parts Pack Bytes Word WordOf load_word as_pack aligned chunk column_fold columns each item load_pack mine narrow quotient store_pack
    recurrence Recurrence Cell run_cells steps_of_cells
    from import None True False stage find_tile nearest multiply_steps kBand in_band above height split power
    Slots turn groups counter words other group_fold launch_groups kGroupThreads kMostBlocks kLine kPartWords kWords multiprocessors together seen
    kept Blocks sharers sharer width slot room kClusters cluster_fold launch_clusters of_block cluster block config attribute
    planes weights image images channel group row_tile out_of of_rows of_row unscale state half line first_row q0 q1 q2 c sums_of k0 k1 k2 at0 at1 at2 from0 from1 from2
    sample_input lay_out_planes lay_out_row convolve_planes put_planes scale_of power_for larger_finite largest_of_block kHopper input shared parts
    begin_barrier arrive_at wait_at passed expect_bytes bring_bytes lines_of_plane multiply_planes multiply_taps is_used rows_of taps_of taps of_class LinesOfPlane pair_at meet_multipliers shift_of
    Ring ring slots full empty strip memory Eight padded stages_of magnitude exponent_of exponent power_of_two scaled write_eight
    prepare_along find_largest prepare_across shared_address halves_at multiply_sixteen bring_halves multiply_halves
    share_registers meet_with_sums put_halves halves_of matrix lines largest found held of_warps rest again done random_state draw_again LARGEST SLOTS PERIOD
    kLineSteps kSideBytes kStageBytes kSlots kStripBytes kHalvesBytes kHalvesThreads kSpan kPlaces kHeld kRest kAlongBytes kAcrossBytes
"""
RESERVED = frozenset(_WORDS.split())
"""Names that mean something in C, in Python or in the text around a kernel."""


def in_c(name: str) -> str:
    """An argument of forward as a kernel's parameter: in capitals it may be anybody's macro, in other alphabets it is not everybody's word."""
    plain = "".join(c if c.isalnum() and c.isascii() else "_" for c in name)
    return f"{plain}_in" if plain in RESERVED or plain != name or name.lower() != name or name.startswith("_") else name
