// Package deploy tests the installation files of Workcell with the real tools: the Helm chart and the plain manifests.
package deploy

import (
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/internal/commandtest"
)

var must = checktest.Must

const chart = "deploy/helm/workcell"

// output runs a program in the repository's root directory.
func output(t *testing.T, program string, args ...string) string {
	t.Helper()
	c := exec.Command(program, args...)
	c.Dir = filepath.Join("..", "..")
	var stderr strings.Builder
	c.Stderr = &stderr
	out, err := c.Output()
	if err != nil {
		t.Fatalf("%s %v: %v: %s", program, args, err, &stderr)
	}
	return string(out)
}

func helm(t *testing.T) string {
	t.Helper()
	return strings.TrimSpace(output(t, "hack/tool.sh", "helm"))
}

func TestChartLints(t *testing.T) {
	t.Parallel()
	output(t, helm(t), "lint", "--strict", chart)
}

// TestManifestsAreOfTheChart: the plain manifests equal the output of the chart with default values.
func TestManifestsAreOfTheChart(t *testing.T) {
	t.Parallel()
	have, err := os.ReadFile(filepath.Join("..", "..", "deploy", "kubernetes", "workcell.yaml"))
	must(t, err)
	_, body, _ := strings.Cut(string(have), "\n") // the first line is a comment on the source
	want := output(t, helm(t), "template", "workcell", "--namespace", "workcell", chart)
	want = regexp.MustCompile(`(?m)^.*(managed-by: Helm|helm\.sh/chart).*\n`).ReplaceAllString(want, "")
	if diff := cmp.Diff(want, body); diff != "" {
		t.Errorf("make manifests was not run (-chart +file):\n%s", diff)
	}
}

// TestChartHasTheDriversRole: the server's role equals the driver's role.
func TestChartHasTheDriversRole(t *testing.T) {
	t.Parallel()
	file, err := os.ReadFile(filepath.Join("..", "..", "backend", "kubernetes", "role.yaml"))
	must(t, err)
	var want, have rbacv1.Role
	must(t, yaml.Unmarshal(file, &want))
	for _, doc := range strings.Split(output(t, helm(t), "template", "workcell", chart), "\n---\n") {
		if strings.Contains(doc, "kind: Role\n") {
			must(t, yaml.Unmarshal([]byte(doc), &have))
		}
	}
	if diff := cmp.Diff(want.Rules, have.Rules); diff != "" || len(want.Rules) == 0 {
		t.Errorf("the chart's role is not the driver's (-driver +chart):\n%s", diff)
	}
}

// TestRuntimeClasses: the server may read the RuntimeClasses of the configuration, and no others. Without
// them, it has no rights outside the namespace of the sandboxes.
func TestRuntimeClasses(t *testing.T) {
	t.Parallel()
	if out := output(t, helm(t), "template", "workcell", chart); strings.Contains(out, "kind: ClusterRole") {
		t.Error("the chart has a ClusterRole without RuntimeClasses")
	}
	out := output(t, helm(t), "template", "workcell", "--namespace", "agents", chart, "--set", "config.kubernetes.runtime_classes={gvisor,kata}")
	want := []rbacv1.PolicyRule{{
		APIGroups: []string{"node.k8s.io"}, Resources: []string{"runtimeclasses"},
		Verbs: []string{"get"}, ResourceNames: []string{"gvisor", "kata"},
	}}
	var role rbacv1.ClusterRole
	var binding rbacv1.ClusterRoleBinding
	for _, doc := range strings.Split(out, "\n---\n") {
		var err error
		switch {
		case strings.Contains(doc, "kind: ClusterRole\n"):
			err = yaml.Unmarshal([]byte(doc), &role)
		case strings.Contains(doc, "kind: ClusterRoleBinding\n"):
			err = yaml.Unmarshal([]byte(doc), &binding)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(want, role.Rules); diff != "" {
		t.Errorf("rules (-want +got):\n%s", diff)
	}
	subject := rbacv1.Subject{Kind: "ServiceAccount", Name: "workcell", Namespace: "agents"}
	if diff := cmp.Diff([]rbacv1.Subject{subject}, binding.Subjects); diff != "" || binding.RoleRef.Name != role.Name {
		t.Errorf("binding to %s of %s (-want +got):\n%s", binding.RoleRef.Name, role.Name, diff)
	}
}

// TestReplicasNeedADatabase: several servers and workers require a database. Without it, servers would not know each
// other's sandboxes, and workers would have no runs.
func TestReplicasNeedADatabase(t *testing.T) {
	t.Parallel()
	for _, set := range []string{"replicas=2", "workers.replicas=1"} {
		c := exec.Command(helm(t), "template", "workcell", chart, "--set", set)
		c.Dir = filepath.Join("..", "..")
		if out, err := c.CombinedOutput(); err == nil || !strings.Contains(string(out), "database.secret") {
			t.Errorf("%s without a database: %v, %s", set, err, out)
		}
		output(t, helm(t), "template", "workcell", chart, "--set", set, "--set", "database.secret=state")
	}
}

// TestRefusedValues: the chart refuses names and values that cannot work, and names the reason.
func TestRefusedValues(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ release, set, want string }{
		{"123", "replicas=1", "must start with a letter"}, {"a.b", "replicas=1", "must start with a letter"},
		{"a", "serviceAccount.create=false", "needs serviceAccount.name"},
		{"a", "config.kubernetes.namespace=other", "namespace"},
	} {
		c := exec.Command(helm(t), "template", test.release, chart, "--set", test.set)
		c.Dir = filepath.Join("..", "..")
		if out, err := c.CombinedOutput(); err == nil || !strings.Contains(string(out), test.want) {
			t.Errorf("%s with %s: %v, %s", test.release, test.set, err, out)
		}
	}
	set := "tolerations[0].effect=NoExecute,tolerations[0].operator=Exists,tolerations[0].tolerationSeconds=0"
	output(t, helm(t), "template", "a", chart, "--set", set)
}

// TestNamespaceStays: the namespace of the sandboxes outlives the release, and it differs from the release's namespace.
func TestNamespaceStays(t *testing.T) {
	t.Parallel()
	args := []string{"template", "workcell", chart, "--set", "sandboxes.createNamespace=true"}
	c := exec.Command(helm(t), args...)
	c.Dir = filepath.Join("..", "..")
	if out, err := c.CombinedOutput(); err == nil || !strings.Contains(string(out), "sandboxes.namespace") {
		t.Errorf("without a name: %v, %s", err, out)
	}
	if out := output(t, helm(t), append(args, "--set", "sandboxes.namespace=boxes")...); !strings.Contains(out, "helm.sh/resource-policy: keep") {
		t.Errorf("it goes with the release:\n%s", out)
	}
}

// TestWorkers: workers have the same settings as the server, except for serving, and their termination time fits their
// runs. Both have the additional files. The server needs no Secret with a token if it has a file.
func TestWorkers(t *testing.T) {
	t.Parallel()
	all := map[string]appsv1.Deployment{}
	const files = `extraVolumes=[{"name": "tokens", "secret": {"secretName": "tokens", "defaultMode": 256}}]`
	const mounts = `extraVolumeMounts=[{"name": "tokens", "mountPath": "/etc/tokens", "readOnly": true}]`
	for _, doc := range strings.Split(output(t, helm(t), "template", "a", chart, "--set-json", files, "--set-json", mounts, "--set",
		"token.secret=,database.secret=state,workers.replicas=3,workers.graceSeconds=60"), "\n---\n") {
		if !strings.Contains(doc, "kind: Deployment\n") {
			continue
		}
		var d appsv1.Deployment
		must(t, yaml.UnmarshalStrict([]byte(doc), &d))
		all[d.Name] = d
	}
	server, worker := all["a"].Spec.Template.Spec, all["a-worker"].Spec.Template.Spec
	if len(all) != 2 || *all["a-worker"].Spec.Replicas != 3 || *worker.TerminationGracePeriodSeconds != 90 {
		t.Fatalf("the deployments are %+v", all)
	}
	if got, want := strings.Join(worker.Containers[0].Args, " "), "worker --max-runs=8 --grace=60s"; got != want {
		t.Errorf("workers run %q, want %q", got, want)
	}
	for _, spec := range []*corev1.PodSpec{&server, &worker} {
		c := &spec.Containers[0]
		if v, m := spec.Volumes, c.VolumeMounts; v[len(v)-1].Secret == nil || m[len(m)-1].MountPath != "/etc/tokens" {
			t.Errorf("volumes %+v, mounted %+v", v, m)
		}
		spec.TerminationGracePeriodSeconds, c.Args, c.Ports, c.StartupProbe, c.LivenessProbe, c.ReadinessProbe = nil, nil, nil, nil, nil, nil
	}
	if diff := cmp.Diff(server, worker); diff != "" {
		t.Errorf("a worker is not as the server is (-server +worker):\n%s", diff)
	}
}

// TestValuesOfTheConfiguration: the command reads the settings in the chart's values for sandboxes, pools, and
// telemetry.
func TestValuesOfTheConfiguration(t *testing.T) {
	t.Parallel()
	const sandboxes = `sandboxes={"imagePullSecrets": [{"name": "registry"}], "nodeSelector": {"pool": "agents"}, "priorityClassName": "low",
		"tolerations": [{"key": "sandboxes", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 60}],
		"labels": {"team": "ml"}, "annotations": {"safe-to-evict": "false"}}`
	got := output(t, helm(t), "template", "a", chart, "--set-json", `pool={"python:3.11-slim": 4}`, "--set",
		"telemetry.endpoint=http://collector:4318,sandboxes.namespace=boxes,sandboxes.networkPolicy=enforced,guestImage=example.com/guest:1", "--set-json", sandboxes)
	var m corev1.ConfigMap
	for _, doc := range strings.Split(got, "\n---\n") {
		if strings.Contains(doc, "kind: ConfigMap\n") {
			must(t, yaml.UnmarshalStrict([]byte(doc), &m))
		}
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "workcell.yaml")
	must(t, os.WriteFile(file, []byte(m.Data["workcell.yaml"]), 0o600))
	command, err := commandtest.Build(dir)
	must(t, err)
	c := exec.Command(command, "config", "show", "-o", "json", "--config", file)
	c.Env = []string{"HOME=" + dir}
	text, err := c.Output()
	if err != nil {
		t.Fatalf("config show: %v\n%s", err, text)
	}
	var values []struct {
		Key   string
		Value any
	}
	must(t, json.Unmarshal(text, &values))
	want := map[string]any{
		"kubernetes.namespace": "boxes", "kubernetes.network_policy": "enforced", "kubernetes.guest_image": "example.com/guest:1",
		"telemetry.endpoint": "http://collector:4318", "pool": []any{"python:3.11-slim=4"},
		"kubernetes.image_pull_secrets": []any{"registry"}, "kubernetes.node_selector": []any{"pool=agents"}, "kubernetes.priority_class": "low",
		"kubernetes.tolerations": []any{map[string]any{"key": "sandboxes", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 60.0}},
		"kubernetes.labels":      []any{"team=ml"}, "kubernetes.annotations": []any{"safe-to-evict=false"},
	}
	have, keys := map[string]any{}, map[string]bool{}
	for _, v := range values {
		if want[v.Key] != nil {
			have[v.Key] = v.Value
		}
		name, _, _ := strings.Cut(v.Key, ".")
		keys[name] = true
	}
	if diff := cmp.Diff(want, have); diff != "" {
		t.Errorf("configuration (-want +got):\n%s", diff)
	}
	var schema struct {
		Properties struct {
			Config struct{ Properties map[string]any }
		}
	}
	text, err = os.ReadFile(filepath.Join("..", "..", chart, "values.schema.json"))
	if err == nil {
		err = json.Unmarshal(text, &schema)
	}
	must(t, err)
	if diff := cmp.Diff(slices.Sorted(maps.Keys(keys)), slices.Sorted(maps.Keys(schema.Properties.Config.Properties))); diff != "" {
		t.Errorf("keys of config in the schema (-command +schema):\n%s", diff)
	}
}

// TestValuesSchema: Helm rejects unknown values and values of a wrong type, and accepts every value of the chart.
func TestValuesSchema(t *testing.T) {
	t.Parallel()
	for set, want := range map[string]string{
		"replica=3": "'replica' not allowed", `config={"nosuch":1}`: "'nosuch' not allowed", "sandboxes.claims=true": "'claims' not allowed",
		"replicas=many": "got string, want integer", "sandboxes.networkPolicy=on": "'enforced'", `sandboxes.labels={"a":1}`: "want string",
		`sandboxes.tolerations=[{"seconds":1}]`: "'seconds' not allowed", "image.pullPolicy=Sometimes": "'IfNotPresent'",
		"storage.home=8K": "does not match pattern",
	} {
		flag := "--set"
		if strings.Contains(set, "={") || strings.Contains(set, "=[") {
			flag = "--set-json"
		}
		c := exec.Command(helm(t), "template", "workcell", chart, flag, set)
		c.Dir = filepath.Join("..", "..")
		if out, err := c.CombinedOutput(); err == nil || !strings.Contains(string(out), want) {
			t.Errorf("%s: %v, %s, want %s", set, err, out, want)
		}
	}
	text, err := os.ReadFile(filepath.Join("..", "..", chart, "values.schema.json"))
	must(t, err)
	for _, line := range strings.Split(output(t, helm(t), "show", "values", chart), "\n") {
		name, _, ok := strings.Cut(strings.TrimSpace(line), ":")
		free := name == "requests" || name == "limits" || strings.ContainsAny(name, "#{")
		if ok && !free && !strings.Contains(string(text), `"`+name+`"`) {
			t.Errorf("the schema does not have %s", name)
		}
	}
}

// TestLabelsAndBudgets verifies the standard labels of all objects and the settings of pods. Only pods with replicas
// get a disruption budget, which allows one unavailable pod and the eviction of unready pods.
func TestLabelsAndBudgets(t *testing.T) {
	t.Parallel()
	budgets := func(set string) (names []string) {
		set += ",database.secret=state,podLabels.team=ml,podAnnotations.note=x,priorityClassName=high"
		args := []string{"template", "a", chart, "--set", set}
		for _, doc := range strings.Split(output(t, helm(t), args...), "\n---\n") {
			var object struct {
				metav1.TypeMeta
				metav1.ObjectMeta `json:"metadata"`
				Spec              struct {
					Template       corev1.PodTemplateSpec
					MaxUnavailable int
					Selector       json.RawMessage

					UnhealthyPodEvictionPolicy string
				}
			}
			must(t, yaml.Unmarshal([]byte(doc), &object))
			for key, want := range map[string]string{
				"app.kubernetes.io/instance": "a", "app.kubernetes.io/managed-by": "Helm",
				"app.kubernetes.io/version": "dev", "helm.sh/chart": "workcell-0.1.0",
			} {
				if object.Labels[key] != want {
					t.Errorf("%s %s: label %s is %q", object.Kind, object.Name, key, object.Labels[key])
				}
			}
			switch pod := object.Spec.Template; object.Kind {
			case "Deployment":
				if pod.Labels["team"] != "ml" || pod.Annotations["note"] != "x" || pod.Spec.PriorityClassName != "high" {
					t.Errorf("pods of %s: %+v", object.Name, pod)
				}
			case "PodDisruptionBudget":
				names = append(names, object.Name)
				unready, selector := object.Spec.UnhealthyPodEvictionPolicy, string(object.Spec.Selector)
				if object.Spec.MaxUnavailable != 1 || unready != "AlwaysAllow" || strings.Contains(selector, "version") {
					t.Errorf("budget %s: %+v", object.Name, object.Spec)
				}
			}
		}
		return slices.Sorted(slices.Values(names))
	}
	if got := budgets("replicas=1,workers.replicas=1"); got != nil {
		t.Errorf("budgets of single pods: %v", got)
	}
	if got := budgets("replicas=2,workers.replicas=2"); !slices.Equal(got, []string{"a", "a-worker"}) {
		t.Errorf("budgets: %v", got)
	}
}
