/*
 * Preparation of random geometries, with buffers of exactly the size that it asks for: under the
 * address sanitizer a single byte read or written beyond them ends the program. And of specs that are
 * garbage.
 */
#include "prepare/prepare.h"

#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "mcpd.h"

#define GEOMETRIES 4000
#define SPECS 200000
#define MOST_LINES 90 /* of a random spec */
#define MOST_PIXELS 10000 /* of an output that garbage may ask for */

static uint64_t state = UINT64_C(88172645463325252);

/* 0..n - 1, the same in every run. */
static uint32_t below(uint32_t n)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)(state % n);
}

/* Planes of a format at random offsets, with random padding; now and then a stride too short. */
static void place_planes(struct mcpd_prepare_spec *spec)
{
    static const uint32_t nplanes[] = {0, 1, 1, 1, 1, 1, 2, 3, 1};
    static const uint32_t pixel_nbytes[] = {0, 3, 3, 4, 4, 1, 1, 1, 2};
    uint32_t chroma_width = (spec->width + 1) / 2, chroma_height = (spec->height + 1) / 2;
    uint64_t at = below(64);

    spec->nplanes = nplanes[spec->format];
    for (uint32_t p = 0; p < spec->nplanes; p++) {
        uint32_t row = spec->width * pixel_nbytes[spec->format];

        if (p > 0)
            row = spec->format == MCPD_NV12 ? 2 * chroma_width : chroma_width;
        spec->plane_stride[p] = row + below(2) * below(40) - (below(50) == 0);
        spec->plane_offset[p] = at;
        at += spec->plane_stride[p] * (p ? chroma_height : spec->height) + below(9);
    }
}

/* A rectangle inside the frame, of any fractions. */
static void place_roi(struct mcpd_prepare_spec *spec)
{
    double size[2] = {spec->width, spec->height};

    for (int i = 0; i < 2; i++) {
        spec->roi[i] = size[i] * below(1000) / 1000.0;
        spec->roi[2 + i] = (size[i] - spec->roi[i]) * (1 + below(1000)) / 1000.0;
    }
}

static struct mcpd_prepare_spec random_spec(void)
{
    struct mcpd_prepare_spec spec = {
        .format = MCPD_RGB24 + below(8),
        .width = 1 + below(below(20) ? 70 : 3000),
        .height = 1 + below(50),
        .matrix = 1 + below(2),
        .range = 1 + below(2),
        .out_width = 1 + below(MOST_LINES),
        .out_height = 1 + below(MOST_LINES),
        .layout = (enum mcpd_prepare_layout)below(2),
        .dtype = (enum mcpd_prepare_dtype)below(4),
        .channels = (enum mcpd_prepare_channels)below(3),
        .resize = (enum mcpd_prepare_resize)below(3),
        .sampling = (enum mcpd_prepare_sampling)below(3),
        .rotation = 90 * below(2) * below(4),
        .scale = below(100) ? below(1000) / 300.0 : 1e30,
        .pad_value = below(256),
    };

    for (int c = 0; c < 3; c++) {
        spec.mean[c] = below(300);
        spec.std[c] = 1 + below(4) - 0.5 * below(2);
    }
    if (spec.dtype == MCPD_OUT_UINT8 || spec.dtype == MCPD_OUT_INT8) {
        spec.quant_scale = below(500) / 100.0;
        spec.zero_point = (int32_t)below(256) - (spec.dtype == MCPD_OUT_INT8 ? 128 : 0);
    }
    if (below(2))
        place_roi(&spec);
    place_planes(&spec);
    return spec;
}

/* A frame of noise in a buffer that lacks `missing` bytes. */
static uint8_t *make_source(const struct mcpd_prepare_plan *plan, size_t missing)
{
    uint8_t *source = malloc(plan->source_nbytes - missing);

    CHECK(source != NULL);
    for (size_t i = 0; i < plan->source_nbytes - missing; i++)
        source[i] = (uint8_t)below(256);
    return source;
}

/* The image of a source by the instruction set chosen, prepared twice: with row buffers kept. */
static unsigned char *prepare(struct mcpd_prepare_plan *plan, const uint8_t *source)
{
    unsigned char *out = malloc(plan->image_nbytes);

    CHECK(out != NULL);
    for (int i = 0; i < 2; i++) {
        memset(out, 99, plan->image_nbytes);
        CHECK_EQUAL(mcpd_prepare_run(plan, source, out), 0);
    }
    return out;
}

/* A plan for the instruction set that MCPD_PREPARE names, or NULL for a spec that is refused. */
static struct mcpd_prepare_plan *plan_for(const struct mcpd_prepare_spec *spec)
{
    struct mcpd_prepare_plan *plan = NULL;
    char why[200] = "";

    if (mcpd_prepare_plan_create(spec, &plan, why, sizeof(why)) != 0)
        CHECK(why[0] != '\0');
    return plan;
}

TEST(random_geometries_stay_inside_their_buffers)
{
    int planned = 0;

    for (int i = 0; i < GEOMETRIES; i++) {
        struct mcpd_prepare_spec spec = random_spec();
        struct mcpd_prepare_plan *plan = plan_for(&spec);
        uint8_t *source;

        if (!plan)
            continue;
        source = make_source(plan, 0);
        free(prepare(plan, source));
        free(source);
        mcpd_prepare_plan_free(plan);
        planned++;
    }
    CHECK(planned > GEOMETRIES / 2 && planned < GEOMETRIES);
}

/* Checks that rows of an axis, but for the first two, are asked for once each, two rows before. */
static void check_ahead(const struct mcpd_prepare_rows *rows, uint32_t lines)
{
    uint32_t sampled[2 * MOST_LINES] = {0}, asked[2 * MOST_LINES], nsampled = 0, nasked = 0;

    for (uint32_t i = 0; i < 2 * lines; i++) {
        uint32_t row = i % 2 ? rows->lower[i / 2] : rows->upper[i / 2];
        int before = 0;

        for (uint32_t s = 0; s < nsampled; s++)
            before |= sampled[s] == row;
        if (!before)
            sampled[nsampled++] = row;
        if (rows->ahead[i] != row) {
            CHECK(!before && nasked + 1 == nsampled);
            asked[nasked++] = rows->ahead[i];
        }
    }
    CHECK_EQUAL(nasked, nsampled > 2 ? nsampled - 2 : 0);
    for (uint32_t i = 0; i < nasked; i++)
        CHECK_EQUAL(asked[i], sampled[i + 2]);
}

TEST(rows_are_asked_for_once_and_two_rows_before)
{
    for (int i = 0; i < GEOMETRIES; i++) {
        struct mcpd_prepare_spec spec = random_spec();
        struct mcpd_prepare_plan *plan = plan_for(&spec);

        for (uint32_t p = 0; plan && !plan->area && p < plan->nplanes; p++)
            check_ahead(&plan->rows[plan->planes[p].axis], plan->lines);
        if (plan)
            mcpd_prepare_plan_free(plan);
    }
}

TEST(images_are_the_same_to_the_bit_by_scalar_and_by_the_fastest)
{
    int compared = 0;

    for (int i = 0; i < GEOMETRIES; i++) {
        struct mcpd_prepare_spec spec = random_spec();
        struct mcpd_prepare_plan *plans[2];
        unsigned char *images[2];
        uint8_t *source;

        CHECK_EQUAL(unsetenv("MCPD_PREPARE"), 0);
        plans[0] = plan_for(&spec);
        CHECK_EQUAL(setenv("MCPD_PREPARE", "scalar", 1), 0);
        plans[1] = plan_for(&spec);
        CHECK((plans[0] == NULL) == (plans[1] == NULL));
        if (!plans[0])
            continue;
        CHECK(strcmp(mcpd_prepare_plan_isa(plans[1]), "scalar") == 0);
        compared += strcmp(mcpd_prepare_plan_isa(plans[0]), "scalar") != 0;
        source = make_source(plans[0], 0);
        for (int p = 0; p < 2; p++)
            images[p] = prepare(plans[p], source);
#ifdef PLANT_ONE_BIT
        images[0][plans[0]->image_nbytes - 1] ^= 1;
#endif
        CHECK(memcmp(images[0], images[1], plans[0]->image_nbytes) == 0);
        for (int p = 0; p < 2; p++) {
            free(images[p]);
            mcpd_prepare_plan_free(plans[p]);
        }
        free(source);
    }
    printf("%d geometries compared\n", compared);
}

/* ---- several threads ----------------------------------------------------------------------- */

TEST(batches_by_several_threads_are_the_same_to_the_bit)
{
    enum { IMAGES = 6 };

    for (int i = 0; i < GEOMETRIES / 100; i++) {
        struct mcpd_prepare_job jobs[IMAGES];
        unsigned char *alone[IMAGES];
        size_t n = 0;

        while (n < IMAGES) {
            struct mcpd_prepare_spec spec = random_spec();
            struct mcpd_prepare_plan *plan;

            spec.out_height += 150;
            plan = plan_for(&spec);
            if (!plan)
                continue;
            jobs[n] = (struct mcpd_prepare_job){.plan = plan, .source = make_source(plan, 0)};
            jobs[n].out = malloc(plan->image_nbytes);
            alone[n] = prepare(plan, jobs[n].source);
            n++;
        }
        CHECK_EQUAL(mcpd_prepare_run_batch(jobs, n, 2 + below(4)), 0);
        for (size_t k = 0; k < n; k++) {
#ifdef PLANT_ONE_BIT
            alone[k][0] ^= 1;
#endif
            CHECK(memcmp(jobs[k].out, alone[k], jobs[k].plan->image_nbytes) == 0);
            free(jobs[k].out);
            free((void *)(uintptr_t)jobs[k].source);
            free(alone[k]);
            mcpd_prepare_plan_free(jobs[k].plan);
        }
    }
}

/* ---- garbage ------------------------------------------------------------------------------- */

/* 64 bits: any, or near an end of a type. */
static uint64_t garbage(void)
{
    static const uint64_t ends[] = {0,
                                    1,
                                    INT8_MAX,
                                    MCPD_PREPARE_MAX_SIDE,
                                    INT32_MAX,
                                    UINT32_MAX,
                                    INT64_MAX,
                                    UINT64_MAX,
                                    UINT64_C(1) << 52};
    uint64_t value = (uint64_t)below(UINT32_MAX) << 32 | below(UINT32_MAX);

    if (below(2))
        return value >> below(64);
    return ends[below(sizeof(ends) / sizeof(ends[0]))] + below(3) - 1;
}

/* Any bits as a number: it may be infinite, or none. */
static double garbage_number(void)
{
    uint64_t bits = garbage();
    double number;

    memcpy(&number, &bits, sizeof(number));
    return below(3) ? number : (double)(int64_t)bits;
}

/* Spoils one field of a spec or several. */
static void spoil(struct mcpd_prepare_spec *spec)
{
    uint32_t *integers[] = {&spec->format, &spec->width,    &spec->height,    &spec->nplanes,
                            &spec->matrix, &spec->range,    &spec->out_width, &spec->out_height,
                            &spec->rotation};
    double *numbers[] = {&spec->roi[0],  &spec->roi[1],  &spec->roi[2], &spec->roi[3],
                         &spec->scale,   &spec->mean[0], &spec->std[1], &spec->pad_value,
                         &spec->quant_scale};

    for (uint32_t n = 1 + below(3); n > 0; n--) {
        switch (below(6)) {
        case 0: *integers[below(9)] = (uint32_t)garbage(); break;
        case 1: *numbers[below(9)] = garbage_number(); break;
        case 2: spec->plane_offset[below(4)] = garbage(); break;
        case 3: spec->plane_stride[below(4)] = garbage(); break;
        case 4: spec->zero_point = (int32_t)(uint32_t)garbage(); break;
        default: {
            uint32_t any = (uint32_t)garbage();

            /* As bytes, for no enumeration need hold it. */
            switch (below(5)) {
            case 0: memcpy(&spec->layout, &any, sizeof(any)); break;
            case 1: memcpy(&spec->dtype, &any, sizeof(any)); break;
            case 2: memcpy(&spec->channels, &any, sizeof(any)); break;
            case 3: memcpy(&spec->resize, &any, sizeof(any)); break;
            default: memcpy(&spec->sampling, &any, sizeof(any));
            }
        }
        }
    }
}

TEST(garbage_is_refused_or_stays_inside_its_buffers)
{
    int planned = 0, ran = 0;

    for (int i = 0; i < SPECS; i++) {
        struct mcpd_prepare_spec spec = random_spec();
        struct mcpd_prepare_plan *plan;

        spoil(&spec);
        if ((uint64_t)spec.out_width * spec.out_height > MOST_PIXELS && below(50))
            continue; /* most of the time would go into few of them */
        plan = plan_for(&spec);
        if (!plan)
            continue;
        planned++;
        if (plan->source_nbytes < 1u << 18 && plan->image_nbytes < 1u << 20 && below(8) == 0) {
            uint8_t *source = make_source(plan, 0);

            free(prepare(plan, source));
            free(source);
            ran++;
        }
        mcpd_prepare_plan_free(plan);
    }
    printf("%d specs of %d planned, %d run\n", planned, SPECS, ran);
    CHECK(planned > SPECS / 20 && planned < SPECS && ran > 100);
}

/* A planted fault: the caller did not check that the source is as long as the plan says. */
#ifdef PLANT_SHORT_SOURCE
TEST(a_source_one_byte_too_short_is_found)
{
    struct mcpd_prepare_spec spec = {
        .format = MCPD_GRAY8, .width = 64, .height = 8, .nplanes = 1, .plane_stride = {64},
        .matrix = MCPD_BT709, .range = MCPD_FULL, .out_width = 64, .out_height = 8,
        .channels = MCPD_OUT_GRAY, .scale = 1, .std = {1, 1, 1},
    };
    struct mcpd_prepare_plan *plan = plan_for(&spec);

    CHECK(plan != NULL);
    free(prepare(plan, make_source(plan, 1)));
}
#endif
